//! Coupled verification, greedy at temperature 0: the walk follows the target's own draws.

use super::Walk;
use crate::distribution::Draw;
use crate::error::Result;
use crate::tree::TokenTree;

/// Walks a tree: `draw(row, depth)` draws the token that follows the node of a row of the window
/// (row 0 = the last committed token, row `i + 1` = node i); `depth` is the node's.
///
/// If the drawn token is a child of the node the walk steps into it, else it stops. Every draw is
/// emitted, so each emitted token is a sample of the target given its own prefix, whatever was
/// drafted. (Coupling in this form: Daliri, Musco, Suresh, arXiv 2408.07978.)
pub fn walk(tree: &TokenTree, mut draw: impl FnMut(usize, i32) -> Result<Draw>) -> Result<Walk> {
    let mut found = Walk::default();
    let mut node = -1;
    loop {
        let drawn = draw((node + 1) as usize, found.path.len() as i32)?;
        found.emit(drawn);
        match tree.child_with_token(node, drawn.token) {
            Some(child) => node = child as i32,
            None => return Ok(found),
        }
        found.path.push(node);
    }
}
