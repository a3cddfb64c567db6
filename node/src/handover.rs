//! Signs changes of voters, so that members who sleep through them can follow: see
//! [`mesh_consensus::handover`].
//!
//! Whoever voted before a change and still is a member signs it once it is applied here, until the state
//! has enough signatures.

use std::time::Duration;

use mesh_consensus::handover::Handover;
use mesh_consensus::id::NodeId;
use mesh_transport::identity::NodeKey;

use crate::engine::Roster;
use crate::handle::{Ask, Handle};
use crate::state::command::HandOver;
use crate::state::party::SignatureBytes;

/// A signature that did not get through is offered again after this time.
const AGAIN: Duration = Duration::from_secs(5);

/// Runs until the node stops.
pub async fn run(handle: Handle, key: NodeKey) {
    let whoami = handle.whoami;
    let mut roster = handle.shown.roster.clone();
    loop {
        let unsigned = unsigned(&roster.borrow_and_update(), whoami.node);
        for handover in unsigned {
            let signature = handover.sign(key.signing(), whoami.mesh, whoami.epoch);
            let act = HandOver { index: handover.index, signature: SignatureBytes(signature) };
            if let Err(error) = handle.write(vec![Ask { act: act.into(), signed: false }]).await {
                // Others may have been faster, and enough.
                tracing::debug!(%error, index = handover.index, "a hand-over was not signed");
            }
        }
        tokio::select! {
            () = handle.stop.cancelled() => return,
            changed = roster.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
}

/// Changes that `node` should sign.
fn unsigned(roster: &Roster, node: NodeId) -> Vec<Handover> {
    let wants = |handover: &&Handover| {
        !handover.is_complete()
            && handover.from.contains(&node)
            && !handover.signed.contains_key(&node)
    };
    match roster.is_member(node) {
        true => roster.handovers.iter().filter(wants).cloned().collect(),
        false => Vec::new(),
    }
}
