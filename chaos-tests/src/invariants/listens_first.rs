//! A node stands for election only after it has lived through its timeout: one that was paused
//! hears its inbox before it judges the silence.

use mesh_consensus::core::Role;

use super::Seen;

#[derive(Default)]
pub(super) struct ListensFirst;

impl ListensFirst {
    pub(super) fn observe(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let Some(before) = seen.before else { return Ok(()) };
        let stood = before.role == Role::Follower && seen.after.role != Role::Follower;
        let (elapsed, _) = before.patience;
        let lived = elapsed + seen.after.ticks - before.ticks;
        if stood && !seen.was_asked && lived < crate::world::ELECTION_TICKS {
            return Err(format!(
                "host {} stood for election {lived} ticks after it heard a leader",
                seen.host
            ));
        }
        Ok(())
    }
}
