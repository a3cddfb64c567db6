//! Keeps enough copies: brings here what this node should hold, and says so.
//!
//! Every node looks for itself, at the state and at who is alive, and comes to the same answer as the
//! others give or take a moment: of those who may hold a version and do not, the ones that placement
//! ranks first take what is missing. A version that is new is fetched at once. A holder that fell
//! silent is waited for a while, since most come back, and what is fetched in its stead is fetched slowly.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mesh_consensus::id::{NodeId, VersionId};
use mesh_storage::placement::{Candidate, owners};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::pull::How;
use super::{Data, Found};
use crate::clock;
use crate::handle::Ask;
use crate::state::State;
use crate::state::command::Act;
use crate::state::data::{Claim, Hold, Version};

/// How often a node looks, when nothing changes.
const LOOK: Duration = Duration::from_secs(5);
/// And at least this long apart.
const APART: Duration = Duration::from_millis(100);
/// A holder that is silent for this long is replaced.
const LOST: Duration = Duration::from_secs(600);
/// Whoever was heard within this time can take a copy.
const AWAKE: Duration = Duration::from_secs(15);
/// What is older, and lacks a copy, has lost one.
const NEW: Duration = Duration::from_secs(600);
/// What a copy that stands in for a lost one may take of the wire, in bytes a second.
const REPAIR_RATE: u64 = 64 << 20;
/// Why the store keeps a version: it is counted on here, or somebody asked for it.
pub(super) const HELD: &str = "held";
/// See [`HELD`].
pub(crate) const PINNED: &str = "pinned";
/// Versions that are fetched at a time, for the sake of the others.
const AT_ONCE: usize = 2;
/// Versions that are looked at in one go.
const MAX_DUTIES: usize = 1024;
/// After a failure a version is left alone for this long.
const REST: Duration = Duration::from_secs(10);

/// How long a silent holder is waited for. Tests of real processes cannot wait for minutes.
pub(super) fn lost() -> Duration {
    match std::env::var("MESH_TEST_WAITS").as_deref() {
        Ok("short") => Duration::from_secs(8),
        _ => LOST,
    }
}

/// Keeps a version that is here from being evicted, for as long as it is counted on.
pub(super) async fn pin(data: &Data, found: &Found) -> bool {
    let (store, manifest) = (data.store.clone(), found.manifest);
    matches!(tokio::task::spawn_blocking(move || store.pin(manifest, HELD)).await, Ok(Ok(())))
}

/// What a node should fetch, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Duty {
    version: VersionId,
    /// Whether it stands in for a holder that was lost: then there is no hurry.
    repairs: bool,
}

/// Runs for as long as the node does.
pub(crate) async fn run(data: Data) {
    let mut pulse = data.shown.pulse.clone();
    let mut resting: BTreeMap<VersionId, Instant> = BTreeMap::new();
    let mut fetching: JoinSet<(VersionId, bool)> = JoinSet::new();
    let mut under_way: BTreeSet<VersionId> = BTreeSet::new();
    let mut looked: Option<(u64, Instant)> = None;
    loop {
        let revision = data.look(|state| state.data_revision()).await;
        let due = looked.is_none_or(|(seen, at)| Some(seen) != revision || at.elapsed() >= LOOK);
        if let (Some(revision), true) = (revision, due && under_way.len() < AT_ONCE) {
            looked = Some((revision, Instant::now()));
            resting.retain(|_, until| *until > Instant::now());
            for duty in data.duties().await {
                let version = duty.version;
                let is_free = under_way.len() < AT_ONCE && !resting.contains_key(&version);
                if is_free && under_way.insert(version) {
                    let data = data.clone();
                    fetching.spawn(async move { (version, data.take(duty).await) });
                }
            }
        }
        tokio::select! {
            done = fetching.join_next(), if !fetching.is_empty() => {
                if let Some(Ok((version, fine))) = done {
                    under_way.remove(&version);
                    if !fine {
                        resting.insert(version, Instant::now() + REST);
                    }
                    looked = None;
                }
            }
            changed = pulse.changed() => if changed.is_err() { return },
            () = sleep(LOOK) => {}
        }
        sleep(APART).await;
    }
}

impl Data {
    /// How long each member has been silent.
    fn silence(&self) -> BTreeMap<NodeId, Duration> {
        let members: Vec<NodeId> = self.shown.roster.borrow().members.keys().copied().collect();
        let me = self.whoami.node;
        self.hub.look(|view, now| {
            let of =
                |node: NodeId| if node == me { Duration::ZERO } else { view.silence(node, now) };
            members.into_iter().map(|node| (node, of(node))).collect()
        })
    }

    /// What this node should fetch now, what is new first.
    async fn duties(&self) -> Vec<Duty> {
        let (me, silence, lost) = (self.whoami.node, self.silence(), self.lost);
        let now = clock::now();
        let duties = self.look(move |state| {
            let mut duties = Vec::new();
            for (id, version) in state.versions() {
                if takes(state, *id, version, me, &silence, lost) {
                    duties.push((
                        version.created.index,
                        Duty { version: *id, repairs: now.since(version.created.time) > NEW },
                    ));
                }
            }
            duties.sort_unstable_by_key(|(index, _)| std::cmp::Reverse(*index));
            duties.into_iter().map(|(_, duty)| duty).take(MAX_DUTIES).collect()
        });
        duties.await.unwrap_or_default()
    }

    /// How many nodes beside the holders could take a copy now.
    pub(super) async fn able_to_hold(&self, id: VersionId) -> usize {
        let silence = self.silence();
        let able = self.look(move |state| {
            let version = state.version(id)?;
            let able = |node: &NodeId| {
                !version.holders.contains(node)
                    && silence.get(node).is_some_and(|silent| *silent <= AWAKE)
            };
            Some(
                state
                    .members()
                    .iter()
                    .filter(|(node, member)| {
                        able(node)
                            && !member.leaving
                            && version.is_for(member.party)
                            && !state.is_drained(**node)
                    })
                    .count(),
            )
        });
        able.await.flatten().unwrap_or(0)
    }

    /// Fetches a version and says that it is held here. Whether that went well.
    async fn take(&self, duty: Duty) -> bool {
        let Some(found) = self.find(duty.version).await else { return true };
        let how = How { limit: duty.repairs.then_some(REPAIR_RATE), ..How::default() };
        if let Err(error) = self.bring(&found, how, |_| {}).await {
            tracing::debug!(version = %duty.version, %error, "a copy could not be made");
            return false;
        }
        self.hold(&found).await
    }

    /// Keeps the version from eviction, and says that it is here for good.
    pub(super) async fn hold(&self, found: &Found) -> bool {
        if !pin(self, found).await {
            return false;
        }
        let act = Act::Hold(Hold { id: found.version, claim: Claim::Kept });
        match self.writer.write(vec![Ask { act, signed: false }]).await {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(version = %found.version, %error, "it could not be said that a copy is here");
                false
            }
        }
    }
}

/// Whether `me` is among those who should make up for missing copies.
fn takes(
    state: &State,
    id: VersionId,
    version: &Version,
    me: NodeId,
    silence: &BTreeMap<NodeId, Duration>,
    lost: Duration,
) -> bool {
    let silent = |node: &NodeId| silence.get(node).copied().unwrap_or(Duration::MAX);
    let holders: BTreeSet<NodeId> =
        version.holders.iter().copied().filter(|node| silent(node) <= lost).collect();
    let missing = usize::from(version.copies).saturating_sub(holders.len());
    if missing == 0 || holders.contains(&me) {
        return false;
    }
    let mut apart = Vec::new();
    let mut beside = Vec::new();
    let taken: BTreeSet<&str> = holders.iter().filter_map(|node| domain(state, *node)).collect();
    for (node, member) in state.members() {
        let may = !member.leaving && version.is_for(member.party) && !state.is_drained(*node);
        if !may || holders.contains(node) || silent(node) > AWAKE {
            continue;
        }
        let candidate = Candidate { node: *node, domain: domain(state, *node), weight: 1 };
        match candidate.domain {
            Some(domain) if taken.contains(domain) => beside.push(candidate),
            _ => apart.push(candidate),
        }
    }
    let first = owners(id, &apart, missing);
    first.contains(&me) || owners(id, &beside, missing - first.len().min(missing)).contains(&me)
}

/// What a node shares its fate with: its label `domain`, or what it said of itself.
fn domain(state: &State, node: NodeId) -> Option<&str> {
    let labelled = state.labels(node).find(|(key, _)| key.as_str() == "domain");
    let said = || state.members().get(&node)?.report.domain.as_ref().map(|name| name.as_str());
    labelled.map(|(_, value)| value.as_str()).or_else(said)
}
