//! Keeps enough copies: brings here what this node should hold, and says so.
//!
//! Every node looks for itself, at the state and at who is alive, and comes to the same answer as the
//! others give or take a moment: of those who may hold a version and do not, the ones that placement
//! ranks first take what is missing. A version that is new is fetched at once. A holder that fell
//! silent is waited for a while, since most come back, and what is fetched in its stead is fetched slowly.
//! One that says to have no room for it is passed over, and comes last where too few are left.
//!
//! If it comes back after all, there is a copy too many. The one that placement ranks last releases its own, through
//! the log: the state refuses that where it would leave fewer than are wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mesh_consensus::id::{NodeId, VersionId};
use mesh_storage::placement::{Candidate, owners};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::pull::{How, PullError};
use super::room::{Disk, Others, size};
use super::{Data, Found};
use crate::clock;
use crate::handle::{Ask, WriteError};
use crate::state::State;
use crate::state::command::Act;
use crate::state::data::{Claim, Hold, Version};

/// How often a node looks, when nothing changes.
const LOOK: Duration = Duration::from_secs(5);
/// And at least this long apart.
const APART: Duration = Duration::from_millis(100);
/// A holder that is silent for this long is replaced.
const LOST: Duration = Duration::from_secs(600);
/// Whoever is there was heard within this time: a node at rest repeats itself about every 45 s, and at least every 54 s.
/// Shorter than [`SETTLED`]: who has just started takes everybody for awake, and must have listened before it decides.
const AWAKE: Duration = Duration::from_secs(58);
/// A copy too many is released once it was one for this long, with the same holders all the while.
const SETTLED: Duration = Duration::from_secs(60);
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
/// Copies that are released in one go: what was seen must not be long ago when the last of them is.
const MAX_RELEASES: usize = 64;
/// After a failure a version is left alone for this long.
const REST: Duration = Duration::from_secs(10);
/// And for this long if there was no room for it: others are asked first, and room is seldom made in seconds.
const REST_FULL: Duration = Duration::from_secs(30);

/// How long a silent holder is waited for. Tests of real processes cannot wait for minutes.
pub(super) fn lost() -> Duration {
    match std::env::var("MESH_TEST_WAITS").as_deref() {
        Ok("short") => Duration::from_secs(8),
        _ => LOST,
    }
}

/// How long a copy too many is looked at before it is released. As [`lost`].
fn settled() -> Duration {
    match std::env::var("MESH_TEST_WAITS").as_deref() {
        Ok("short") => Duration::from_secs(2),
        _ => SETTLED,
    }
}

/// Whom a node has heard, and when: what it goes by beside the state.
struct Heard {
    me: NodeId,
    silence: BTreeMap<NodeId, Duration>,
    /// What they said of their disks, this node among them: all must go by the same words. One that said nothing may
    /// have room.
    disks: BTreeMap<NodeId, Disk>,
    /// See [`LOST`].
    lost: Duration,
}

impl Heard {
    fn within(&self, node: NodeId, longest: Duration) -> bool {
        self.silence.get(&node).is_some_and(|silent| *silent <= longest)
    }

    /// Whether a holder still counts.
    fn is_there(&self, node: NodeId) -> bool {
        self.within(node, self.lost)
    }

    /// Whoever others make up for is not awake, however short that wait is.
    fn is_awake(&self, node: NodeId) -> bool {
        self.within(node, AWAKE.min(self.lost))
    }

    /// Whether a copy of so many bytes would fit there, as far as is known.
    fn has_room(&self, node: NodeId, bytes: Option<u64>) -> bool {
        match (bytes, self.disks.get(&node)) {
            (Some(bytes), Some(disk)) => disk.fits(bytes),
            _ => true,
        }
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

/// How it went with a [`Duty`].
#[derive(Debug, Clone, PartialEq, Eq)]
enum Taken {
    /// There is a copy, or nothing to be done.
    Fine,
    /// It may go better next time.
    Failed,
    /// It does not fit here.
    NoRoom(PullError),
}

impl Taken {
    /// Why there is no copy.
    fn of(error: PullError) -> Self {
        match error {
            PullError::Full | PullError::NoRoom { .. } => Self::NoRoom(error),
            _ => Self::Failed,
        }
    }

    /// For how long the version is left alone.
    fn rest(&self) -> Option<Duration> {
        match self {
            Self::Fine => None,
            Self::Failed => Some(REST),
            Self::NoRoom(_) => Some(REST_FULL),
        }
    }
}

/// Of which versions it was said already that they do not fit here.
#[derive(Default)]
struct Told(BTreeSet<VersionId>);

impl Told {
    /// Whether it is yet to be said that a version does not fit here: once, however often it is tried.
    fn is_news(&mut self, version: VersionId, taken: &Taken) -> bool {
        match taken {
            Taken::NoRoom(_) => {
                if self.0.len() >= MAX_DUTIES {
                    self.0.clear();
                }
                self.0.insert(version)
            }
            Taken::Fine => {
                self.0.remove(&version);
                false
            }
            Taken::Failed => false,
        }
    }
}

/// Versions of which this node's copy is one too many: who held each when that was seen first, and when it was.
type Spare = BTreeMap<VersionId, (BTreeSet<NodeId>, Instant)>;

/// Runs for as long as the node does.
pub(crate) async fn run(data: Data) {
    let mut pulse = data.shown.pulse.clone();
    let mut resting: BTreeMap<VersionId, Instant> = BTreeMap::new();
    let mut fetching: JoinSet<(VersionId, Taken)> = JoinSet::new();
    let mut told = Told::default();
    let mut under_way: BTreeSet<VersionId> = BTreeSet::new();
    let mut looked: Option<(u64, Instant)> = None;
    let mut releasing: JoinSet<()> = JoinSet::new();
    let mut spare = Spare::new();
    let mut compared: Option<Instant> = None;
    let settled = settled();
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
        let due = compared.is_none_or(|at| at.elapsed() >= LOOK);
        if due && releasing.is_empty() {
            compared = Some(Instant::now());
            if let Some(now) = data.spare().await {
                let versions = ripe(&mut spare, now, Instant::now(), settled);
                if !versions.is_empty() {
                    let data = data.clone();
                    releasing.spawn(async move { data.release(versions).await });
                }
            }
        }
        tokio::select! {
            done = fetching.join_next(), if !fetching.is_empty() => {
                if let Some(Ok((version, taken))) = done {
                    under_way.remove(&version);
                    if let (true, Taken::NoRoom(error)) = (told.is_news(version, &taken), &taken) {
                        tracing::warn!(%version, %error, "a copy does not fit on this node: another is to take it");
                    }
                    if let Some(rest) = taken.rest() {
                        resting.insert(version, Instant::now() + rest);
                    }
                    looked = None;
                }
            }
            _ = releasing.join_next(), if !releasing.is_empty() => {}
            changed = pulse.changed() => if changed.is_err() { return },
            () = sleep(LOOK) => {}
        }
        sleep(APART).await;
    }
}

impl Data {
    /// Whom this node has heard, and when.
    fn heard(&self) -> Heard {
        let members: Vec<NodeId> = self.shown.roster.borrow().members.keys().copied().collect();
        let (me, lost) = (self.whoami.node, self.lost);
        let (silence, disks) = self.hub.look(|view, now| {
            let silent =
                |node: NodeId| if node == me { Duration::ZERO } else { view.silence(node, now) };
            let disk = |node: NodeId| {
                let sight = view.get(node, now)?;
                let (total, free) = (sight.record.facts.disk_bytes, sight.load.disk_free_bytes);
                Some((node, Disk { total, free }))
            };
            let disks = members.iter().filter_map(|node| disk(*node)).collect();
            (members.iter().map(|node| (*node, silent(*node))).collect(), disks)
        });
        Heard { me, silence, disks, lost }
    }

    /// What this node should fetch now, what is new first.
    async fn duties(&self) -> Vec<Duty> {
        let (heard, now) = (self.heard(), clock::now());
        let private = self.private().await.unwrap_or_default();
        let duties = self.look(move |state| {
            let mut duties = Vec::new();
            for (id, version) in state.versions() {
                if lacks(state, version, &heard) == 0 {
                    continue;
                }
                let bytes = size(*id, version, &private);
                let is_its_turn = takes(state, *id, version, bytes, &heard);
                let repairs = now.since(version.created.time) > NEW;
                duties.push((version.created.index, is_its_turn, Duty { version: *id, repairs }));
            }
            duties.sort_unstable_by_key(|(index, ..)| std::cmp::Reverse(*index));
            duties.truncate(MAX_DUTIES);
            duties
        });
        let mut taken = Vec::new();
        for (_, is_its_turn, duty) in duties.await.unwrap_or_default() {
            // Whoever has it already is the first to be counted on, whosever turn it is: perhaps nobody else has.
            if is_its_turn || self.has(duty.version).await {
                taken.push(duty);
            }
        }
        taken
    }

    /// Whether all of a version is here.
    async fn has(&self, version: VersionId) -> bool {
        match self.find(version).await {
            Some(found) => self.is_here(&found).await,
            None => false,
        }
    }

    /// The versions of which this node's copy is one too many, and who holds them.
    async fn spare(&self) -> Option<Vec<(VersionId, BTreeSet<NodeId>)>> {
        let heard = self.heard();
        let spare = self.look(move |state| {
            let mut spare = Vec::new();
            for (id, version) in state.versions() {
                if releases(state, *id, version, &heard) {
                    spare.push((*id, version.holders.clone()));
                }
                if spare.len() >= MAX_DUTIES {
                    break;
                }
            }
            spare
        });
        spare.await
    }

    /// Says of these versions that this node's copy is not to be counted on any more. Its bytes are let go once it is
    /// agreed that nobody does: see `tidy`.
    async fn release(&self, versions: Vec<VersionId>) {
        for version in versions {
            let act = Act::Hold(Hold { id: version, claim: Claim::Released });
            match self.writer.write(vec![Ask { act, signed: false }]).await {
                Ok(_) => {
                    tracing::info!(%version, "a copy too many is no longer counted on");
                }
                Err(WriteError::Refused { refusal, .. }) => {
                    tracing::debug!(%version, %refusal, "a copy is needed after all");
                }
                Err(error) => {
                    // Perhaps there is no leader. By then much may have changed: the next look decides anew.
                    tracing::debug!(%version, %error, "a copy could not be released");
                    return;
                }
            }
        }
    }

    /// Which nodes beside the holders may have a copy; `None` if there is no such version, or this node cannot tell now.
    pub(super) async fn others(&self, id: VersionId) -> Option<Others> {
        let (heard, private) = (self.heard(), self.private().await.unwrap_or_default());
        let others = self.look(move |state| {
            let version = state.version(id)?;
            Some(others(state, version, size(id, version, &private), &heard))
        });
        others.await.flatten()
    }

    /// Fetches a version and says that it is held here.
    async fn take(&self, duty: Duty) -> Taken {
        let Some(found) = self.find(duty.version).await else { return Taken::Fine };
        let how = How { limit: duty.repairs.then_some(REPAIR_RATE), ..How::default() };
        if let Err(error) = self.bring(&found, how, |_| {}).await {
            tracing::debug!(version = %duty.version, %error, "a copy could not be made");
            return Taken::of(error);
        }
        if self.hold(&found).await { Taken::Fine } else { Taken::Failed }
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

/// The members that may have a copy, those that do included.
pub(super) fn may_hold<'a>(
    state: &'a State,
    version: &'a Version,
) -> impl Iterator<Item = NodeId> + 'a {
    let members = state.members().iter().filter(|(node, member)| {
        !member.leaving && version.is_for(member.party) && !state.is_drained(**node)
    });
    members.map(|(node, _)| *node)
}

/// How many copies are missing of which this node could have one.
fn lacks(state: &State, version: &Version, heard: &Heard) -> usize {
    let me = heard.me;
    let could = !version.holders.contains(&me) && may_hold(state, version).any(|node| node == me);
    let holders = version.holders.iter().filter(|node| heard.is_there(**node)).count();
    if could { usize::from(version.copies).saturating_sub(holders) } else { 0 }
}

/// Those who may have a copy of so many bytes and have none.
fn others(state: &State, version: &Version, bytes: Option<u64>, heard: &Heard) -> Others {
    let mut others = Others::default();
    for node in may_hold(state, version).filter(|node| !version.holders.contains(node)) {
        match (heard.is_awake(node), heard.has_room(node, bytes)) {
            (false, _) => others.silent.push(node),
            (true, false) => others.full.push(node),
            (true, true) => others.able.push(node),
        }
    }
    others
}

/// Whether this node is among those who should make up for missing copies. Those without room for so many bytes are the
/// last choice: where nobody else is left, they may have some of it already, or can evict something.
fn takes(
    state: &State,
    id: VersionId,
    version: &Version,
    bytes: Option<u64>,
    heard: &Heard,
) -> bool {
    let missing = lacks(state, version, heard);
    if missing == 0 {
        return false;
    }
    let holders: BTreeSet<NodeId> =
        version.holders.iter().copied().filter(|node| heard.is_there(*node)).collect();
    let (mut apart, mut beside, mut full) = (Vec::new(), Vec::new(), Vec::new());
    let taken: BTreeSet<&str> = holders.iter().filter_map(|node| domain(state, *node)).collect();
    for node in may_hold(state, version) {
        if holders.contains(&node) || !heard.is_awake(node) {
            continue;
        }
        let candidate = Candidate { node, domain: domain(state, node), weight: 1 };
        let is_beside = candidate.domain.is_some_and(|domain| taken.contains(domain));
        match (heard.has_room(node, bytes), is_beside) {
            (true, false) => apart.push(candidate),
            (true, true) => beside.push(candidate),
            (false, _) => full.push(candidate),
        }
    }
    let mut left = missing;
    for candidates in [apart, beside, full] {
        let chosen = owners(id, &candidates, left);
        if chosen.contains(&heard.me) {
            return true;
        }
        left = left.saturating_sub(chosen.len());
    }
    false
}

/// Whether this node's copy is one too many. Of the holders that are there only the one that placement ranks last says
/// so, and so they go one at a time. If two do because they have heard different nodes, the state refuses whichever
/// is needed.
fn releases(state: &State, id: VersionId, version: &Version, heard: &Heard) -> bool {
    let wanted = usize::from(version.copies);
    if !version.holders.contains(&heard.me) || state.live_copies(version) <= wanted {
        return false;
    }
    let there: Vec<Candidate<'_>> = version
        .holders
        .iter()
        .copied()
        .filter(|node| state.is_member(*node) && heard.is_awake(*node))
        .map(|node| Candidate { node, domain: domain(state, node), weight: 1 })
        .collect();
    there.len() > wanted && owners(id, &there, there.len()).last() == Some(&heard.me)
}

/// Of what is to spare `now`, what was so for as long as `settled` and has the same holders still.
fn ripe(
    spare: &mut Spare,
    now: Vec<(VersionId, BTreeSet<NodeId>)>,
    at: Instant,
    settled: Duration,
) -> Vec<VersionId> {
    let mut before = std::mem::take(spare);
    for (id, holders) in now {
        let since = match before.remove(&id) {
            Some((same, since)) if same == holders => since,
            _ => at,
        };
        spare.insert(id, (holders, since));
    }
    let ripe = spare.iter().filter(|(_, (_, since))| at.duration_since(*since) >= settled);
    ripe.map(|(id, _)| *id).take(MAX_RELEASES).collect()
}

/// What a node shares its fate with: its label `domain`, or what it said of itself.
fn domain(state: &State, node: NodeId) -> Option<&str> {
    let labelled = state.labels(node).find(|(key, _)| key.as_str() == "domain");
    let said = || state.members().get(&node)?.report.domain.as_ref().map(|name| name.as_str());
    labelled.map(|(_, value)| value.as_str()).or_else(said)
}

#[cfg(test)]
mod tests {
    use mesh_consensus::id::Hash;

    use super::*;
    use crate::state::command::Leave;
    use crate::state::data::{Body, Lineage, Plain, Readers, VersionNew};
    use crate::state::level::LEVEL;
    use crate::state::refusal::Refusal;
    use crate::state::testing::{Scene, id, name, node, party_id};

    const VERSION: VersionId = VersionId([7; 16]);
    const RELEASED: Hold = Hold { id: VERSION, claim: Claim::Released };

    /// Nodes 1 to 5 of one party, and a version of which three copies are wanted and these hold one.
    fn scene(holders: &[u8]) -> Scene {
        let mut scene = Scene::new();
        for n in 2..=5 {
            scene.join(1, n).unwrap();
        }
        scene.raise_to(LEVEL);
        let (name, manifest) = (name("mnist"), Hash([8; 32]));
        let (readers, lineage) = (Readers::Everyone, Lineage::default());
        let body =
            Body::Plain(Plain { name, number: 1, manifest, bytes: 1, files: 1, readers, lineage });
        let holders = holders.iter().map(|n| id(*n)).collect();
        let (party, revision) = (party_id(1), None);
        let act = VersionNew { party, id: VERSION, revision, copies: 3, holders, body };
        scene.act(&node(1), act).unwrap();
        scene
    }

    /// Who would release its copy, if these are silent for so long and the others were just heard.
    fn who(scene: &Scene, silent: &[u8], for_long: Duration) -> Vec<u8> {
        let of = |n: u8| if silent.contains(&n) { for_long } else { Duration::ZERO };
        let silence: BTreeMap<NodeId, Duration> = (1..=5).map(|n| (id(n), of(n))).collect();
        let version = scene.state.version(VERSION).unwrap();
        let would = |n: &u8| {
            let disks = BTreeMap::new();
            let heard = Heard { me: id(*n), silence: silence.clone(), disks, lost: LOST };
            releases(&scene.state, VERSION, version, &heard)
        };
        (1..=5).filter(would).collect()
    }

    /// Which of these placement ranks last.
    fn last(scene: &Scene, among: &[u8]) -> u8 {
        let candidate =
            |n: &u8| Candidate { node: id(*n), domain: domain(&scene.state, id(*n)), weight: 1 };
        let candidates: Vec<Candidate<'_>> = among.iter().map(candidate).collect();
        let ranked = owners(VERSION, &candidates, candidates.len());
        among.iter().copied().find(|n| Some(&id(*n)) == ranked.last()).unwrap()
    }

    /// Who would take a copy, if each was last heard so long ago by the others.
    fn who_takes(scene: &Scene, heard: impl Fn(u8) -> Duration) -> Vec<u8> {
        who_takes_beside(scene, heard, &[])
    }

    /// The same, if these have no room.
    fn who_takes_beside(scene: &Scene, heard: impl Fn(u8) -> Duration, full: &[u8]) -> Vec<u8> {
        let version = scene.state.version(VERSION).unwrap();
        let would = |me: &u8| {
            let of = |n: u8| if n == *me { Duration::ZERO } else { heard(n) };
            let silence = (1..=5).map(|n| (id(n), of(n))).collect();
            let heard = Heard { me: id(*me), silence, disks: disks(full), lost: LOST };
            takes(&scene.state, VERSION, version, Some(1 << 20), &heard)
        };
        (1..=5).filter(would).collect()
    }

    /// What is said of disks, if these are full and the others empty.
    fn disks(full: &[u8]) -> BTreeMap<NodeId, Disk> {
        let total = 1 << 30;
        let disk = |n: u8| Disk { total, free: if full.contains(&n) { 0 } else { total } };
        (1..=5).map(|n| (id(n), disk(n))).collect()
    }

    #[test]
    fn the_next_node_takes_what_has_no_room_on_the_one_before_it() {
        let scene = scene(&[1]);
        let now = |_: u8| Duration::ZERO;
        let first = who_takes(&scene, now);
        let [stays, full] = first[..] else { panic!("two take it: {first:?}") };
        let then = who_takes_beside(&scene, now, &[full]);
        assert_eq!(then.len(), 2, "{then:?}");
        assert!(then.contains(&stays) && !then.contains(&full), "{then:?} instead of {first:?}");
        // A full holder is a holder.
        assert_eq!(who_takes_beside(&scene, now, &[1]), first);
    }

    #[test]
    fn where_too_few_have_room_those_without_are_the_last_choice() {
        let scene = scene(&[1]);
        let now = |_: u8| Duration::ZERO;
        let takers = who_takes_beside(&scene, now, &[2, 3, 4]);
        assert!(takers.len() == 2 && takers.contains(&5), "{takers:?}");
        assert_eq!(who_takes_beside(&scene, now, &[2, 3, 4, 5]), who_takes(&scene, now));
    }

    #[test]
    fn if_one_node_has_heard_of_other_disks_there_is_at_most_one_copy_too_many() {
        let scene = scene(&[1, 2]);
        let version = scene.state.version(VERSION).unwrap();
        let takes_it = |me: u8, full: Option<u8>| {
            let silence = (1..=5).map(|n| (id(n), Duration::ZERO)).collect();
            let disks = disks(full.as_slice());
            let heard = Heard { me: id(me), silence, disks, lost: LOST };
            takes(&scene.state, VERSION, version, Some(1 << 20), &heard)
        };
        for full in 3..=5u8 {
            assert_eq!((3..=5).filter(|n| takes_it(*n, Some(full))).count(), 1, "all know");
            for odd in 3..=5u8 {
                let deaf = |n: &u8| takes_it(*n, (*n != odd).then_some(full));
                let alone = |n: &u8| takes_it(*n, (*n == odd).then_some(full));
                assert!(
                    (3..=5).filter(deaf).count() <= 2,
                    "{odd} has not heard that {full} is full"
                );
                assert!((3..=5).filter(alone).count() <= 2, "{odd} alone has heard it");
            }
        }
    }

    #[test]
    fn only_those_that_are_there_and_have_room_can_take_a_copy() {
        let scene = scene(&[1]);
        let version = scene.state.version(VERSION).unwrap();
        let silent = |n: u8| if n == 3 { 2 * AWAKE } else { Duration::ZERO };
        let silence = (1..=5).map(|n| (id(n), silent(n))).collect();
        let heard = Heard { me: id(1), silence, disks: disks(&[1, 2, 3]), lost: LOST };
        let mut found = others(&scene.state, version, Some(1 << 20), &heard);
        found.able.sort_unstable();
        let mut able = vec![id(4), id(5)];
        able.sort_unstable();
        assert_eq!(found, Others { able, full: vec![id(2)], silent: vec![id(3)] });
        // Of what nobody can tell the size of, none is too large.
        assert!(others(&scene.state, version, None, &heard).full.is_empty());
    }

    #[test]
    fn that_a_version_does_not_fit_is_said_once() {
        let mut told = Told::default();
        let full = Taken::of(PullError::Full);
        assert_eq!(full, Taken::NoRoom(PullError::Full));
        assert!(told.is_news(VERSION, &full));
        assert!(!told.is_news(VERSION, &full), "it is tried again");
        assert!(!told.is_news(VERSION, &Taken::of(PullError::Stopping)));
        assert!(!told.is_news(VERSION, &full));
        assert!(!told.is_news(VERSION, &Taken::Fine));
        assert!(told.is_news(VERSION, &full), "it was here meanwhile");
        assert_eq!(full.rest(), Some(REST_FULL));
    }

    #[test]
    fn in_a_mesh_at_rest_as_many_take_a_copy_as_are_missing() {
        let scene = scene(&[1]);
        let fresh = who_takes(&scene, |_| Duration::ZERO);
        assert_eq!(fresh.len(), 2);
        assert_eq!(who_takes(&scene, |n| Duration::from_secs(11 * u64::from(n))), fresh);
        // One that is gone is not waited for.
        let gone = |n: u8| if n == fresh[0] { AWAKE * 2 } else { Duration::ZERO };
        let there: Vec<u8> =
            who_takes(&scene, gone).into_iter().filter(|n| *n != fresh[0]).collect();
        assert_eq!(there.len(), 2);
    }

    #[test]
    fn of_too_many_holders_the_one_that_placement_ranks_last_releases_its_copy() {
        let cases: [&[u8]; 3] = [&[1, 2, 3, 4], &[2, 3, 4, 5], &[1, 2, 3, 4, 5]];
        for holders in cases {
            let scene = scene(holders);
            assert_eq!(who(&scene, &[], Duration::ZERO), [last(&scene, holders)]);
        }
    }

    #[test]
    fn nobody_releases_a_copy_that_is_wanted() {
        let cases: [&[u8]; 4] = [&[1], &[1, 2], &[1, 2, 3], &[3, 4, 5]];
        for holders in cases {
            assert_eq!(who(&scene(holders), &[], Duration::ZERO), [0u8; 0], "{holders:?}");
        }
    }

    #[test]
    fn holders_that_are_silent_or_leaving_do_not_count() {
        let mut scene = scene(&[1, 2, 3, 4]);
        let all = last(&scene, &[1, 2, 3, 4]);
        assert_eq!(who(&scene, &[2], AWAKE), [all], "a node at rest says little");
        assert_eq!(who(&scene, &[2], AWAKE + Duration::from_secs(1)), [0u8; 0]);
        scene.seat_voters(&[1, 4]);
        scene.act(&node(4), Leave { node: id(4) }).unwrap();
        assert_eq!(who(&scene, &[], Duration::ZERO), [0u8; 0]);
        // With one more there are enough again, and it is one of those who are there that goes.
        let scene = self::scene(&[1, 2, 3, 4, 5]);
        let there = last(&scene, &[1, 3, 4, 5]);
        assert_eq!(who(&scene, &[2], 2 * AWAKE), [there]);
    }

    #[test]
    fn where_two_share_a_domain_one_of_these_goes() {
        let mut scene = scene(&[1, 2, 3, 4]);
        for (n, rack) in [(1, "a"), (2, "b"), (3, "b"), (4, "c")] {
            scene.report(n, |report| report.domain = Some(name(rack)));
        }
        let gone = who(&scene, &[], Duration::ZERO);
        assert!(gone == [2] || gone == [3], "{gone:?}");
    }

    #[test]
    fn the_state_refuses_to_go_below_what_is_wanted_whatever_nodes_believe() {
        let mut scene = scene(&[1, 2, 3, 4]);
        let [first] = who(&scene, &[], Duration::ZERO)[..] else { panic!("one releases") };
        scene.act(&node(first), RELEASED).unwrap();
        let others = (1..=4).filter(|n| *n != first);
        for other in others {
            assert_eq!(scene.act(&node(other), RELEASED), Err(Refusal::StillNeeded));
        }
        assert_eq!(scene.state.version(VERSION).unwrap().holders.len(), 3);
        assert_eq!(who(&scene, &[], Duration::ZERO), [0u8; 0]);
    }

    #[test]
    fn a_copy_is_released_only_after_it_was_too_many_for_a_while() {
        let holders = |nodes: &[u8]| nodes.iter().map(|n| id(*n)).collect::<BTreeSet<NodeId>>();
        let (begun, mut spare) = (Instant::now(), Spare::new());
        let mut at = |seconds: u64, nodes: Option<&[u8]>| {
            let now = nodes.map(|nodes| (VERSION, holders(nodes))).into_iter().collect();
            ripe(&mut spare, now, begun + Duration::from_secs(seconds), SETTLED)
        };
        let four: Option<&[u8]> = Some(&[1, 2, 3, 4]);
        let five: Option<&[u8]> = Some(&[1, 2, 3, 4, 5]);
        assert_eq!(at(0, four), []);
        assert_eq!(at(59, four), []);
        assert_eq!(at(60, four), [VERSION]);
        // Another holder, or a moment in which it was not too many, and it begins anew.
        assert_eq!(at(61, five), []);
        assert_eq!(at(120, four), []);
        assert_eq!(at(180, None), []);
        assert_eq!(at(181, four), []);
        assert_eq!(at(241, four), [VERSION]);
    }
}
