//! Who has to go when every place at a door is taken.
//!
//! A **stranger** is a connection that has not shown yet that it may ask: one that sends half a header, say. When
//! there is no place for a newcomer, the stranger that came first makes room. Whoever has shown that it may ask
//! stays, however many come after it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// The strangers at one door. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Strangers(Arc<Mutex<Queue>>);

/// Those who wait to be known, in the order in which they came. One with a place in it may be sent away, and nobody else.
#[derive(Default)]
struct Queue {
    came: u64,
    waiting: BTreeMap<u64, CancellationToken>,
}

/// One connection. Cheap to clone.
#[derive(Clone)]
pub(super) struct Guest(Arc<Place>);

struct Place {
    number: u64,
    /// Cancelled if it is to go.
    dismissed: CancellationToken,
    door: Strangers,
}

impl Strangers {
    /// One more has come.
    pub(super) fn enter(&self) -> Guest {
        let mut queue = self.queue();
        queue.came += 1;
        let (number, dismissed) = (queue.came, CancellationToken::new());
        queue.waiting.insert(number, dismissed.clone());
        Guest(Arc::new(Place { number, dismissed, door: self.clone() }))
    }

    /// Sends away the one that came first, if there is one.
    pub(super) fn dismiss_first(&self) {
        let first = self.queue().waiting.pop_first();
        if let Some((_, dismissed)) = first {
            dismissed.cancel();
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guest {
    /// It has shown that it may ask, and stays.
    pub(super) fn vouch(&self) {
        self.0.door.queue().waiting.remove(&self.0.number);
    }

    /// Returns when it has to go.
    pub(super) async fn dismissed(&self) {
        self.0.dismissed.cancelled().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.door.queue().waiting.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_stranger_goes_and_whoever_is_known_stays() {
        let door = Strangers::default();
        let [first, second, third, fourth] = std::array::from_fn(|_| door.enter());
        let gone = |guest: &Guest| guest.0.dismissed.is_cancelled();
        first.vouch();
        // It went by itself.
        drop(second);
        door.dismiss_first();
        assert!(!gone(&first) && gone(&third) && !gone(&fourth));
        door.dismiss_first();
        assert!(!gone(&first) && gone(&fourth));
        // Nobody is left who could go.
        door.dismiss_first();
        assert!(!gone(&first));
        // It was too late.
        third.vouch();
        assert!(gone(&third));
    }
}
