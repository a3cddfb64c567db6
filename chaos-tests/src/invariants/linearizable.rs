//! Reads and writes of the clients look as if each happened at one moment between its call and its
//! return. See [`crate::linear`].

use crate::linear::{self, Event};

/// What the clients did and saw.
#[derive(Default)]
pub struct History {
    /// Finished operations, and writes whose outcome nobody learnt.
    pub events: Vec<Event>,
}

impl History {
    pub(super) fn check(&self) -> Result<(), String> {
        linear::check(&self.events, None).map_err(|error| error.to_string())
    }
}
