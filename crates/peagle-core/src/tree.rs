//! Token trees: the drafts of one request that wait for verification.
//!
//! A node is a draft token; its parent is an earlier node, or -1 for the last committed token. A
//! chain is a tree of width one. Nodes stand in topological order (a parent before its children), so
//! any prefix of a tree is a tree.

use crate::error::{Error, Result};
use crate::ids::TokenId;

/// Draft tokens with their parents, in topological order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenTree {
    tokens: Vec<TokenId>,
    parents: Vec<i32>,
}

impl TokenTree {
    /// A tree from node tokens and parent indices (-1 = the last committed token).
    ///
    /// Refused: different lengths, a parent that is not an earlier node, a negative token, and
    /// siblings with the same token.
    pub fn new(tokens: Vec<TokenId>, parents: Vec<i32>) -> Result<Self> {
        if tokens.len() != parents.len() {
            return Err(Error::ShapeMismatch {
                name: "number of tree parents",
                got: parents.len() as i64,
                expected: tokens.len() as i64,
            });
        }
        for (node, (&token, &parent)) in tokens.iter().zip(&parents).enumerate() {
            if parent < -1 || parent >= node as i32 {
                return Err(Error::InvalidTree {
                    node,
                    reason: "parent is not an earlier node",
                });
            }
            if token < 0 {
                return Err(Error::InvalidTree {
                    node,
                    reason: "token id is negative",
                });
            }
            let mut earlier = tokens[..node].iter().zip(&parents[..node]);
            if earlier.any(|(&t, &p)| t == token && p == parent) {
                return Err(Error::InvalidTree {
                    node,
                    reason: "sibling has the same token",
                });
            }
        }
        Ok(Self { tokens, parents })
    }

    /// A chain: every token hangs on the one before it.
    pub fn chain(tokens: Vec<TokenId>) -> Result<Self> {
        let parents = (-1..tokens.len() as i32 - 1).collect();
        Self::new(tokens, parents)
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Node tokens.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Parent of each node, -1 = the last committed token.
    pub fn parents(&self) -> &[i32] {
        &self.parents
    }

    /// Whether every node hangs on the one before it.
    pub fn is_chain(&self) -> bool {
        self.parents
            .iter()
            .enumerate()
            .all(|(node, &parent)| parent == node as i32 - 1)
    }

    /// Depth of each node; a node that hangs on the last committed token has depth 1.
    pub fn depths(&self) -> Vec<i32> {
        let mut depths: Vec<i32> = Vec::with_capacity(self.len());
        for &parent in &self.parents {
            depths.push(1 + usize::try_from(parent).map_or(0, |parent| depths[parent]));
        }
        depths
    }

    /// Children of a node (-1 = of the last committed token), in order.
    pub fn children(&self, parent: i32) -> impl Iterator<Item = usize> + '_ {
        let first = (parent + 1) as usize;
        (first..self.len()).filter(move |&node| self.parents[node] == parent)
    }

    /// The child of a node (-1 = of the last committed token) that holds `token`.
    pub fn child_with_token(&self, parent: i32, token: TokenId) -> Option<usize> {
        self.children(parent)
            .find(|&node| self.tokens[node] == token)
    }

    /// A node's ancestors, nearest first, without the node itself.
    pub fn ancestors(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        let parent_of = |node: usize| usize::try_from(self.parents[node]).ok();
        std::iter::successors(parent_of(node), move |&node| parent_of(node))
    }

    /// The tokens from the root to a node, its own among them; none for -1.
    pub fn path(&self, node: i32) -> impl Iterator<Item = TokenId> + '_ {
        let last = usize::try_from(node).ok();
        let mut nodes: Vec<usize> = last
            .into_iter()
            .flat_map(|node| std::iter::once(node).chain(self.ancestors(node)))
            .collect();
        nodes.reverse();
        nodes.into_iter().map(|node| self.tokens[node])
    }

    /// Which nodes a node sees, `[len, len]` row-major: its ancestors and itself.
    pub fn mask(&self) -> Vec<bool> {
        let len = self.len();
        let mut mask = vec![false; len * len];
        for node in 0..len {
            if let Ok(parent) = usize::try_from(self.parents[node]) {
                mask.copy_within(parent * len..(parent + 1) * len, node * len);
            }
            mask[node * len + node] = true;
        }
        mask
    }

    /// Keeps the first `len` nodes.
    pub fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.parents.truncate(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> TokenTree {
        // Two roots; node 2 and 3 hang on node 0, node 4 on node 2.
        TokenTree::new(vec![7, 8, 9, 7, 1], vec![-1, -1, 0, 0, 2]).unwrap()
    }

    #[test]
    fn depths_children_and_ancestors() {
        let tree = sample();
        assert_eq!(tree.depths(), [1, 1, 2, 2, 3]);
        assert_eq!(tree.children(-1).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(tree.children(0).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(tree.children(4).count(), 0);
        assert_eq!(tree.ancestors(4).collect::<Vec<_>>(), [2, 0]);
        assert_eq!(tree.path(4).collect::<Vec<_>>(), [7, 9, 1]);
        assert_eq!(tree.path(-1).count(), 0);
        assert_eq!(tree.child_with_token(0, 7), Some(3));
        assert_eq!(tree.child_with_token(-1, 9), None);
    }

    #[test]
    fn the_mask_is_the_ancestor_relation() {
        let tree = sample();
        let mask = tree.mask();
        for row in 0..tree.len() {
            for column in 0..tree.len() {
                let seen = row == column || tree.ancestors(row).any(|node| node == column);
                assert_eq!(mask[row * tree.len() + column], seen, "{row} {column}");
            }
        }
    }

    #[test]
    fn a_chain_is_a_tree_of_width_one() {
        let chain = TokenTree::chain(vec![5, 5, 5]).unwrap();
        assert!(chain.is_chain());
        assert_eq!(chain.parents(), [-1, 0, 1]);
        assert_eq!(chain.depths(), [1, 2, 3]);
        assert!(!sample().is_chain());
        assert!(TokenTree::default().is_chain());
    }

    #[test]
    fn a_prefix_is_a_tree() {
        let tree = sample();
        for len in 0..=tree.len() {
            let mut prefix = tree.clone();
            prefix.truncate(len);
            assert!(TokenTree::new(prefix.tokens.clone(), prefix.parents.clone()).is_ok());
        }
    }

    #[test]
    fn malformed_trees_are_refused() {
        for (tokens, parents) in [
            (vec![1], vec![0]),
            (vec![1], vec![-2]),
            (vec![1, 2], vec![-1, 1]),
            (vec![-1], vec![-1]),
            (vec![1, 1], vec![-1, -1]),
        ] {
            assert!(matches!(
                TokenTree::new(tokens, parents),
                Err(Error::InvalidTree { .. })
            ));
        }
        assert!(matches!(
            TokenTree::new(vec![1], vec![]),
            Err(Error::ShapeMismatch { .. })
        ));
    }
}
