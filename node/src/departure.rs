//! Leaving the mesh for good.
//!
//! ```text
//!  mesh leave ─► asking ──────► unseating ─────────► seeing off ──────────────────► left
//!   the file     the mesh has   it votes, until a    until a majority of the        the directory is
//!   `leaving`    not agreed yet configuration does   voters that remain have        no node's any more,
//!                     │         without its seat     applied that configuration     and the process ends
//!                     └─► refused: it stays
//! ```
//!
//! Raft acts on a change of voters when it is applied, so a voter that goes the moment its removal is committed may
//! leave behind others who do not know that yet, and who would wait for its vote for ever. It therefore stays, and
//! votes, until a majority of the voters that remain have applied its removal (docs/decisions/0002): their bookmarks
//! say so, or they turn it away as no member. However long that takes: the file `leaving` outlives a restart, and the
//! node goes on by itself.

use std::collections::BTreeSet;
use std::time::Duration;

use mesh_consensus::id::NodeId;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::dir::{Dir, DirError};
use crate::handle::{Ask, Handle, WriteError};
use crate::removal::{ASK, is_majority, is_removed, later_epoch, turns_away};
use crate::state::command::{Act, Leave};
use crate::state::refusal::Refusal;

/// The file that says that this node wants to leave, and whether it had a seat then.
const WISH: &str = "leaving";
/// How often the node looks how far it is …
const LOOK: Duration = Duration::from_millis(100);
/// … and how often after a while.
const LOOK_LATER: Duration = Duration::from_secs(2);
/// After this while.
const LATER: Duration = Duration::from_secs(15);
/// Between two tries of what failed.
const AGAIN: Duration = Duration::from_secs(1);

/// How far a node has come on its way out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Step {
    /// It stays.
    #[default]
    Staying,
    /// It has asked, and the mesh has not agreed yet.
    Asking,
    /// The mesh has agreed, and still counts its vote.
    Unseating,
    /// The mesh does without its vote, and not enough of the others are known to know.
    SeeingOff,
    /// It may be switched off, and its directory deleted.
    Left,
    /// The mesh said no: it stays.
    Refused(WriteError),
}

impl Step {
    /// As `--json` shows it.
    pub fn name(&self) -> &'static str {
        match self {
            Step::Staying | Step::Refused(_) => "staying",
            Step::Asking => "asking",
            Step::Unseating => "unseating",
            Step::SeeingOff => "seeing_off",
            Step::Left => "left",
        }
    }

    /// What has to happen next, for people.
    pub fn waits_for(&self) -> Option<&'static str> {
        match self {
            Step::Staying | Step::Refused(_) | Step::Left => None,
            Step::Asking => Some("the mesh has not agreed yet: it may have no leader"),
            Step::Unseating => {
                Some("the mesh still counts its vote: another node has to take over")
            }
            Step::SeeingOff => Some("too few of the other voters are known to do without its vote"),
        }
    }

    /// Whether it is on its way.
    pub fn is_leaving(&self) -> bool {
        self.waits_for().is_some()
    }
}

/// The way out of a node.
#[derive(Debug)]
pub struct Departure {
    step: watch::Sender<Step>,
}

impl Default for Departure {
    fn default() -> Self {
        Self { step: watch::channel(Step::default()).0 }
    }
}

impl Departure {
    /// How far it is, now and later.
    pub fn step(&self) -> watch::Receiver<Step> {
        self.step.subscribe()
    }

    fn set(&self, step: Step) {
        self.step.send_if_modified(|held| {
            let changed = *held != step;
            *held = step;
            changed
        });
    }
}

/// Wishes to leave. From here on the node goes on by itself, unless the mesh says no.
pub fn wish(handle: &Handle) -> Result<(), DirError> {
    let step = handle.departure.step().borrow().clone();
    if !step.is_leaving() && step != Step::Left {
        handle.dir.keep_cached(WISH, &is_seated(handle))?;
        handle.departure.set(Step::Asking);
    }
    Ok(())
}

/// Whether the node of a directory has wished to leave, and has not left yet.
pub fn is_wished(dir: &Dir) -> bool {
    dir.cached::<bool>(WISH).is_some()
}

/// Waits for the wish to leave, of today or of before a restart, and leaves.
pub async fn run(handle: Handle) {
    if is_wished(&handle.dir) {
        tracing::info!("this node was about to leave, and goes on");
        handle.departure.set(Step::Asking);
    }
    let mut step = handle.departure.step();
    while step.wait_for(Step::is_leaving).await.is_ok() {
        let was_seated = handle.dir.cached(WISH).unwrap_or(true);
        if let Err(error) = agree(&handle).await {
            tracing::warn!(%error, "this node cannot leave");
            let _ = handle.dir.forget_cached(WISH);
            handle.departure.set(Step::Refused(error));
            continue;
        }
        if (was_seated || is_seated(&handle)) && !is_alone(&handle) {
            see_off(&handle).await;
        }
        while let Err(error) = mark_left(&handle) {
            tracing::warn!(error = &error as &dyn std::error::Error, "it cannot be written down");
            sleep(AGAIN).await;
        }
        tracing::info!("this node has left the mesh");
        handle.departure.set(Step::Left);
        handle.stop.cancel();
        return;
    }
}

/// Returns once the mesh has agreed that this node goes; or with its no.
async fn agree(handle: &Handle) -> Result<(), WriteError> {
    let me = handle.whoami.node;
    loop {
        let roster = handle.roster();
        let going = roster.members.get(&me).is_some_and(|place| place.leaving);
        if going || roster.removed.contains(&me) || is_alone(handle) {
            return Ok(());
        }
        let ask = Ask { act: Act::Leave(Leave { node: me }), signed: false };
        let written = tokio::select! {
            written = handle.write(vec![ask]) => written,
            () = turned_away(handle) => return Ok(()),
        };
        match written {
            Ok(_) => return Ok(()),
            // It had agreed before.
            Err(
                WriteError::Removed { .. }
                | WriteError::Refused { refusal: Refusal::NotMember | Refusal::NoSuchMember, .. },
            ) => return Ok(()),
            Err(WriteError::Rejected(_)) if !handle.roster().is_member(me) => return Ok(()),
            Err(error @ (WriteError::Refused { .. } | WriteError::Unknown(_))) => {
                return Err(error);
            }
            Err(error) => {
                tracing::info!(%error, "the mesh has not agreed yet that this node leaves");
                sleep(AGAIN).await;
            }
        }
    }
}

/// With the last member the mesh ends: there is nobody left to agree, or to wait for a vote.
fn is_alone(handle: &Handle) -> bool {
    let roster = handle.roster();
    roster.members.len() == 1 && roster.members.contains_key(&handle.whoami.node)
}

/// Waits until a majority of the voters says that this node is no member. One that has no seat is cut off by
/// the removal it asked for, and may never hear of it in another way.
async fn turned_away(handle: &Handle) {
    loop {
        sleep(ASK).await;
        // Those of a later epoch turn away everyone of an earlier one, and may still count it as a member.
        if is_removed(handle).await && later_epoch(handle).await.is_none() {
            return;
        }
    }
}

fn is_seated(handle: &Handle) -> bool {
    handle.roster().seated.contains(&handle.whoami.node)
}

/// Stays until a majority of the voters that remain have applied the removal.
async fn see_off(handle: &Handle) {
    let me = handle.whoami.node;
    let began = Instant::now();
    // Those that have turned this node away.
    let mut away: BTreeSet<NodeId> = BTreeSet::new();
    let mut gone_at: Option<u64> = None;
    loop {
        let roster = handle.roster();
        if gone_at.is_none() && !roster.seated.contains(&me) {
            gone_at = Some(roster.index);
        }
        handle.departure.set(if gone_at.is_some() { Step::SeeingOff } else { Step::Unseating });
        let rest: Vec<NodeId> = roster.voters.iter().copied().filter(|node| *node != me).collect();
        let board = handle.shown.board.borrow().clone();
        let has_applied = |node: &NodeId| {
            let marked = board.get(node).map(|held| held.mark.index);
            away.contains(node) || gone_at.is_some_and(|index| marked >= Some(index))
        };
        if is_majority(rest.iter().filter(|node| has_applied(node)).count(), rest.len()) {
            return;
        }
        let open: Vec<NodeId> = rest.into_iter().filter(|node| !has_applied(node)).collect();
        let asked = futures::future::join_all(open.iter().map(|node| turns_away(handle, *node)));
        let turned = open.iter().zip(asked.await).filter(|(_, turned)| *turned);
        away.extend(turned.map(|(node, _)| *node));
        sleep(if began.elapsed() < LATER { LOOK } else { LOOK_LATER }).await;
    }
}

/// From here on the directory is no node's any more.
fn mark_left(handle: &Handle) -> Result<(), DirError> {
    if let Some(mut membership) = handle.dir.membership()? {
        membership.left = true;
        handle.dir.keep_membership(&membership)?;
    }
    handle.dir.forget_cached(WISH)
}
