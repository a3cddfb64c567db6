//! Which of several servers to ask first: the one that answered last. So a dead one costs the first question a
//! little, and the next ones nothing.

use std::sync::Mutex;

use mesh_consensus::id::NodeId;

/// The server that answered last, if any has.
#[derive(Debug, Default)]
pub struct Favourite(Mutex<Option<NodeId>>);

impl Favourite {
    /// Whom to ask at the `tries`th try, counted from zero: the favourite, then the others in their order.
    pub fn pick(&self, servers: &[NodeId], tries: usize) -> Option<NodeId> {
        let held = *self.0.lock().unwrap_or_else(|held| held.into_inner());
        let first = held.and_then(|node| servers.iter().position(|one| *one == node));
        let at = first.unwrap_or(0).wrapping_add(tries) % servers.len().max(1);
        servers.get(at).copied()
    }

    /// It answered.
    pub fn answered(&self, node: NodeId) {
        *self.0.lock().unwrap_or_else(|held| held.into_inner()) = Some(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_server_is_asked_first_only_once() {
        let [a, b, c] = [1, 2, 3].map(|n| NodeId([n; 32]));
        let all = [a, b, c];
        let favourite = Favourite::default();
        assert_eq!(
            (0..4).map(|n| favourite.pick(&all, n).unwrap()).collect::<Vec<_>>(),
            [a, b, c, a]
        );
        favourite.answered(b);
        assert_eq!((0..3).map(|n| favourite.pick(&all, n).unwrap()).collect::<Vec<_>>(), [b, c, a]);
        // It has no seat any more.
        assert_eq!(favourite.pick(&[a, c], 0), Some(a));
        assert_eq!(favourite.pick(&[], 0), None);
    }
}
