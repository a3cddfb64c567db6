//! Promises of the state as a whole: it never panics, it is the same everywhere, and a snapshot is
//! all of it.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use mesh_consensus::command::Command;
use mesh_consensus::handover::Handover;
use mesh_consensus::id::{Hash, MeshId, NodeId, PartyId, RaftId};
use mesh_consensus::log::Config;
use mesh_consensus::machine::{At, Halt, Outcome, StateMachine};
use mesh_consensus::time::Time;
use proptest::prelude::*;

use super::command::{
    Act, Drain, KINDS, Label, NameSet, Pace, RaiseLevel, Rejoin, Report, RequestWithdraw,
};
use super::course::tests as course_tests;
use super::data::{Body, Data, Readers, Sealed, tests as data_tests};
use super::decided::{Decided, Decision, MAX_DECIDED};
use super::extras::Extras;
use super::founding::mesh_id;
use super::invite::Invitation;
use super::level::LEVEL;
use super::party::{Party, SignatureBytes, Slot};
use super::refusal::Refusal;
use super::request::{JointAct, Request, RequestId};
use super::server::tests as server_tests;
use super::testing::{Scene, any_act, first, founding, id, name, node, party, party_id, ticket};
use super::ticket::sign_consent;
use super::{Moment, State};

/// One line of a made-up history.
#[derive(Debug, Clone)]
enum Step {
    Apply(At, Command),
    Config(u64, Config),
    Recovery(u64, u32, RaftId),
}

/// Tells what became of it, so that two replicas can be compared.
fn take(state: &mut State, step: &Step) -> Result<Option<Outcome>, Halt> {
    match step {
        Step::Apply(at, command) => state.apply(at, command).map(Some),
        Step::Config(index, config) => {
            // As the replica does: a change that is not allowed is void.
            if state.allows(config) {
                state.on_config(*index, config);
            }
            Ok(None)
        }
        Step::Recovery(index, epoch, survivor) => {
            state.on_recovery(*index, *epoch, *survivor);
            Ok(None)
        }
    }
}

/// A history with much that is valid, much that almost is, and some garbage. It follows a state of
/// its own so that requests are answered and seats are real.
fn history(seed: u64, length: usize) -> Vec<Step> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut guide = State::genesis(founding(), LEVEL).unwrap();
    let (mut index, mut epoch, mut time) = (1, 0, founding().time);
    let mut steps = Vec::new();
    while steps.len() < length {
        index += random.u64(0..2);
        time = Time(time.0 + random.u64(0..20));
        let at = At {
            mesh: mesh_id(&founding()),
            epoch,
            index,
            time,
            author: author(&guide, &mut random),
            sequence: steps.len() as u64,
            position: random.u32(0..3),
        };
        let step = match random.u8(0..100) {
            0..6 => {
                let seats: Vec<RaftId> = guide.members().values().filter_map(|m| m.seat).collect();
                let mut config = Config::default();
                for seat in seats {
                    match random.u8(0..4) {
                        0 | 1 => config.voters.insert(seat),
                        2 => config.learners.insert(seat),
                        _ => false,
                    };
                }
                Step::Config(index, config)
            }
            6 => {
                epoch += 1;
                let survivor = guide.config().voters.first().copied().unwrap_or(RaftId(1));
                Step::Recovery(index, epoch, survivor)
            }
            7..12 => {
                let body = std::iter::repeat_with(|| random.u8(..)).take(random_len(seed, index));
                Step::Apply(at, Command { kind: 0, body: body.collect() })
            }
            12..16 => {
                let mut command = any_act(&mut random, time).command();
                let place = random.usize(0..command.body.len());
                command.body[place] ^= 1 << random.u8(0..8);
                command.kind = random.u16(0..KINDS.len() as u16);
                Step::Apply(at, command)
            }
            _ => {
                let mut act = any_act(&mut random, time);
                let is_early = |act: &Act| act.kind() >= guide.level().kinds;
                while (matches!(act, Act::Rejoin(_)) || is_early(&act)) && random.u8(0..8) > 0 {
                    // Whoever rejoins loses its vote, and changes of voters need some that have one.
                    // And what comes before its level is not worth many places.
                    act = any_act(&mut random, time);
                }
                let signer = make_likely(&mut act, &at, &guide, &mut random);
                let command = if random.u8(0..10) < 7 {
                    act.signed(&party(signer), &Slot::of(&at))
                } else {
                    act.command()
                };
                Step::Apply(at, command)
            }
        };
        take(&mut guide, &step).unwrap();
        steps.push(step);
    }
    steps
}

/// Mostly a member.
fn author(guide: &State, random: &mut fastrand::Rng) -> NodeId {
    let members = guide.members().keys().copied();
    if random.u8(0..10) == 0 { id(9) } else { random.choice(members).unwrap_or(id(9)) }
}

/// Turns the act to what there is, and names the party that would sign it; mostly.
fn make_likely(act: &mut Act, at: &At, guide: &State, random: &mut fastrand::Rng) -> u8 {
    let there: Vec<u8> = (1..5).filter(|n| guide.parties().contains_key(&party_id(*n))).collect();
    let signer = if random.u8(0..10) == 0 { 4 } else { random.choice(there).unwrap_or(1) };
    if random.u8(0..10) == 0 {
        return signer;
    }
    match act {
        Act::TicketNew(act) => act.party = party_id(signer),
        Act::Invite(act) => act.party = party_id(signer),
        Act::Report(act) if random.bool() => act.level = LEVEL,
        Act::Report(act) => act.level = act.level.max(random.u16(2..=LEVEL)),
        Act::RaiseLevel(act) => {
            *act = RaiseLevel::to(guide.level().number + 1).unwrap_or(*act);
        }
        Act::Admit(act) => {
            let present = guide.present_parties();
            let absent = guide.tickets().iter().find(|(_, t)| !present.contains(&t.party));
            // Only a party that has a node has a say.
            if let Some((ticket, _)) = absent {
                act.ticket = *ticket;
            }
            let newcomer = (1..9).find(|n| id(*n) == act.node);
            if let (Some(n), Some(ticket)) = (newcomer, guide.tickets().get(&act.ticket)) {
                let mesh = mesh_id(&founding());
                act.consent = sign_consent(&node(n), mesh, act.ticket, ticket.party);
            }
        }
        Act::NameSet(act) => {
            act.party = party_id(signer);
            act.expect = guide.name(act.party, &act.name);
        }
        Act::NameDrop(act) => {
            act.party = party_id(signer);
            act.expect = guide.name(act.party, &act.name).unwrap_or(act.expect);
        }
        Act::HandOver(act) => {
            let mine = |handover: &&Handover| handover.from.contains(&at.author);
            let author = (1..9).find(|n| id(*n) == at.author);
            if let (Some(n), Some(handover)) = (author, guide.handovers().filter(mine).last()) {
                act.index = handover.index;
                act.signature = SignatureBytes(handover.sign(&node(n), at.mesh, at.epoch));
            }
        }
        Act::VersionNew(act) => {
            act.party = guide.party_of(at.author).unwrap_or(act.party);
            if act.copies == 0 {
                act.holders.clear();
            } else {
                act.holders.insert(at.author);
            }
            make_body_likely(&mut act.body, guide, act.party, random);
            let revision = guide.sealed_revision(act.party);
            act.revision = act.body.is_sealed().then_some(revision);
        }
        Act::VersionBody(act) => {
            let Some(version) = guide.version(act.id) else { return signer };
            act.expect = version.body.hash();
            make_body_likely(&mut act.body, guide, version.party, random);
            if let (Some((name, number)), true) = (version.body.place(), random.bool()) {
                let (old_name, old_number) = (name.clone(), number);
                match &mut act.body {
                    Body::Plain(plain) => (plain.name, plain.number) = (old_name, old_number),
                    Body::Sealed(Sealed { listing: Some(listing), .. }) => {
                        (listing.name, listing.number) = (old_name, old_number);
                    }
                    Body::Sealed(_) => {}
                }
            }
            let is_sealed = version.body.is_sealed() || act.body.is_sealed();
            act.revision = is_sealed.then(|| guide.sealed_revision(version.party));
        }
        Act::TagSet(act) => {
            act.party = guide.party_of(at.author).unwrap_or(act.party);
            let names: Vec<_> = guide.data_names(act.party).collect();
            if let Some((name, numbers)) = random.choice(names) {
                act.name = name.clone();
                act.expect = numbers.tags.get(&act.tag).copied();
                act.to =
                    random.choice(numbers.versions.keys().copied()).filter(|_| act.to.is_some());
            }
        }
        Act::JobSubmit(act) => act.party = guide.party_of(at.author).unwrap_or(act.party),
        Act::JobStop(_) | Act::JobForget(_) if random.bool() => {}
        Act::Assign(act) => {
            act.plans = guide.plans();
            let waits =
                guide.live_jobs().filter(|(_, job)| guide.may_start(job)).flat_map(|(id, job)| {
                    let tasks = job.tasks.iter().enumerate();
                    tasks.filter(|(_, task)| task.is_waiting()).map(move |(n, _)| (id, n as u32))
                });
            let waits: Vec<_> = waits.collect();
            for place in &mut act.places {
                place.node = at.author;
                if let Some((job, task)) = random.choice(&waits) {
                    (place.job, place.task) = (*job, *task);
                }
            }
            act.places.truncate(1);
            let given: Vec<_> = guide.members().keys().flat_map(|n| guide.given_to(*n)).collect();
            for end in &mut act.ends {
                if let Some((job, task, given)) = random.choice(&given) {
                    (end.job, end.task, end.fence) = (*job, *task, given.at.index);
                }
            }
        }
        Act::TaskNews(act) => {
            if let Some((job, task, given)) =
                random.choice(guide.given_to(at.author).collect::<Vec<_>>())
            {
                (act.job, act.task, act.fence) = (job, task, given.at.index);
            }
        }
        Act::TaskDone(act) => {
            if let Some((job, task, given)) =
                random.choice(guide.given_to(at.author).collect::<Vec<_>>())
            {
                (act.job, act.task, act.fence) = (job, task, given.at.index);
            }
        }
        Act::TaskKeep(act) => {
            if let Some((job, task, given)) =
                random.choice(guide.given_to(at.author).collect::<Vec<_>>())
            {
                (act.job, act.task, act.fence) = (job, task, given.at.index);
            }
            act.new.party = guide.party_of(at.author).unwrap_or(act.new.party);
            act.new.holders = std::collections::BTreeSet::from([at.author]);
            make_body_likely(&mut act.new.body, guide, act.new.party, random);
        }
        Act::CourseClaim(_) | Act::CourseRound(_) | Act::CourseCharge(_) | Act::CourseEnd(_) => {
            course_tests::make_likely(act, at, guide, random)
        }
        Act::ServerLay(_) | Act::ServerShard(_) | Act::ServerReady(_) | Act::ServerKeep(_) => {
            server_tests::make_likely(act, at, guide, random)
        }
        Act::RequestSign(act) => {
            let open = guide.requests().keys().copied();
            act.request = random.choice(open).unwrap_or(act.request);
            let present = guide.present_parties();
            let signers = (1..5).filter(|n| present.contains(&party_id(*n)));
            return random.choice(signers.collect::<Vec<u8>>()).unwrap_or(signer);
        }
        Act::RequestWithdraw(act) => {
            if let Some((id, request)) = random.choice(guide.requests()) {
                act.request = *id;
                let opener = (1..5).find(|n| party_id(*n) == request.opener);
                return opener.unwrap_or(signer);
            }
        }
        _ => {}
    }
    signer
}

/// Gives it a number that is free, and readers that are there.
fn make_body_likely(body: &mut Body, guide: &State, of: PartyId, random: &mut fastrand::Rng) {
    match body {
        Body::Plain(plain) => {
            plain.number = guide.next_number(of, &plain.name) + random.u32(0..2);
            if let Readers::Parties(readers) = &mut plain.readers {
                readers.retain(|party| *party != of && guide.parties().contains_key(party));
                readers.extend(guide.parties().keys().find(|party| **party != of));
            }
        }
        Body::Sealed(Sealed { listing: Some(listing), .. }) => {
            listing.number = guide.next_number(of, &listing.name);
        }
        Body::Sealed(_) => {}
    }
}

fn random_len(seed: u64, index: u64) -> usize {
    usize::try_from((seed ^ index) % 300).unwrap()
}

#[test]
fn any_history_gives_two_replicas_the_same_bytes_and_a_snapshot_is_all_of_it() {
    let mut done = std::collections::BTreeMap::<u16, u32>::new();
    let mut reasons = std::collections::BTreeSet::new();
    for seed in 0..240 {
        let steps = history(seed, 600);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut first = State::genesis(founding(), LEVEL).unwrap();
        let mut second = first.clone();
        for (place, step) in steps.iter().enumerate() {
            let before = first.snapshot();
            let outcome = take(&mut first, step);
            assert_eq!(outcome, take(&mut second, step), "seed {seed} step {place}");
            if let (Ok(Some(outcome)), Step::Apply(_, command)) = (&outcome, step) {
                match outcome {
                    Outcome::Done => *done.entry(command.kind).or_default() += 1,
                    Outcome::Refused(code) => {
                        assert_eq!(first.snapshot(), before, "seed {seed} step {place}");
                        reasons.insert(*code);
                    }
                }
            }
            if random.u8(0..20) == 0 {
                // The second goes on from a snapshot, the first from what it has.
                let bytes = second.snapshot();
                second = State::blank(LEVEL);
                second.restore(&bytes).unwrap();
                assert_eq!(second.snapshot(), bytes, "seed {seed} step {place}");
            }
        }
        assert_eq!(first.snapshot(), second.snapshot(), "seed {seed}");
        assert_eq!(first, second, "seed {seed}");
    }
    // The histories are worth something only if every kind took effect and most refusals came.
    assert_eq!(done.len(), KINDS.len(), "{done:?}");
    assert!(reasons.len() > 28, "{reasons:?}");
    for reason in [Refusal::BadConsent, Refusal::NotVoter, Refusal::BadTick, Refusal::NotInvited] {
        assert!(reasons.contains(&reason.code()), "{reason:?} of {reasons:?}");
    }
}

#[test]
fn old_and_new_binaries_agree_until_the_old_one_stops() {
    for supported in 1..LEVEL {
        let mut stopped = 0;
        for seed in 0..20 {
            let mut new = State::genesis(founding(), LEVEL).unwrap();
            let mut old = State::genesis(founding(), supported).unwrap();
            for step in history(seed, 300) {
                let outcome = take(&mut new, &step);
                match take(&mut old, &step) {
                    Err(Halt::TooOld { level, supports, .. }) => {
                        assert_eq!((level, supports), (supported + 1, supported));
                        stopped += 1;
                        break;
                    }
                    other => assert_eq!(outcome, other, "seed {seed}"),
                }
                assert_eq!(new.snapshot(), old.snapshot(), "seed {seed}");
            }
            assert_eq!(new.level().number > supported, old.level() != new.level());
        }
        assert!(stopped > 0, "no history raised the level above {supported}");
    }
}

/// A state with something of everything that older levels know.
fn full_scene() -> Scene {
    let mut scene = Scene::of_parties(3);
    scene.make_ticket(1, 1, 3);
    scene.open_removal(1, 2);
    let to = Hash([4; 32]);
    let act = NameSet { party: party_id(1), name: name("xray"), expect: None, to };
    scene.act(&node(1), act).unwrap();
    scene
}

/// The same at level 3, with something of what came with it.
fn scene_at_three() -> Scene {
    let mut scene = full_scene();
    scene.raise_to(3);
    scene.act(&node(1), Pace { tick_ms: 150 }).unwrap();
    for (key, value) in [("site", "north"), ("gpu", "H100")] {
        let value = Some(value.parse().unwrap());
        scene.act(&node(1), Label { node: id(1), key: name(key), value }).unwrap();
    }
    scene.act(&node(2), Drain { node: id(2), on: true }).unwrap();
    scene.make_invite(2, 1, 2);
    scene.make_invite(3, 2, 2);
    let found = scene.found_with(2, 4);
    scene.act(&node(3), found).unwrap();
    scene
}

/// The same at the highest level, with something of everything.
fn top_scene() -> Scene {
    let mut scene = scene_at_three();
    scene.raise_to(LEVEL);
    data_tests::fill(&mut scene);
    scene.open_removal(1, 3);
    let request = RequestId::at(scene.index, 0);
    scene.signed(&node(1), &party(1), RequestWithdraw { request }).unwrap();
    scene
}

/// Made once, as it takes many signatures.
static TOP: LazyLock<Vec<u8>> = LazyLock::new(|| top_scene().state.snapshot());

#[test]
fn the_encoding_at_older_levels_stays_byte_for_byte() {
    let mut scene = full_scene();
    let digest = |scene: &Scene| Hash::of(&scene.state.snapshot()).to_string();
    let (one, two) = (
        "2e79948072e4b09bd2918051cd0b1a62c3207d2a3820dad99e16b8a9a710a994",
        "aa5007bbbd38ef302e9c92559ddc6a891ac23a150c91b5d89c4bb9aec6d455ba",
    );
    assert_eq!(digest(&scene), one);
    scene.raise_to(2);
    assert_eq!(digest(&scene), two);
    let three = "61e458e7f32391c984605697443ab8bb4bd266677961f5b41401394df36e7eb7";
    assert_eq!(digest(&scene_at_three()), three);
}

#[test]
fn a_state_that_is_raised_to_level_four_has_no_data() {
    let mut scene = scene_at_three();
    for n in 1..=3 {
        scene.report(n, |report| report.level = 4);
    }
    let before = scene.state.snapshot();
    scene.raise_to(4);
    assert_eq!(scene.state.facts.data, Data::default());
    let bytes = scene.state.snapshot();
    // All that is new is three nothings at the end, and the level at the beginning.
    assert_eq!(bytes.len(), before.len() + 3);
    assert!(bytes.ends_with(&[0; 3]));
    // Nor does a snapshot of level 3 with something behind it count.
    let longer = [before.as_slice(), &[0; 3]].concat();
    assert!(State::blank(LEVEL).restore(&longer).is_err());
}

#[test]
fn a_state_that_is_raised_to_level_five_has_no_decided_requests() {
    let mut scene = scene_at_three();
    scene.raise_to(4);
    for n in 1..=3 {
        scene.report(n, |report| report.level = 5);
    }
    let before = scene.state.snapshot();
    scene.raise_to(5);
    assert!(scene.state.decided().is_empty());
    let bytes = scene.state.snapshot();
    // All that is new is a nothing at the end, and the level at the beginning.
    assert_eq!(bytes.len(), before.len() + 1);
    assert!(bytes.ends_with(&[0]));
    // Nor does a snapshot of level 4 with something behind it count.
    let longer = [before.as_slice(), &[0]].concat();
    assert!(State::blank(LEVEL).restore(&longer).is_err());
}

#[test]
fn a_state_that_is_raised_to_level_three_has_none_of_what_came_with_it() {
    let mut scene = full_scene();
    scene.raise_to(2);
    for n in 1..=3 {
        scene.report(n, |report| report.level = 3);
    }
    let before = scene.state.snapshot();
    scene.raise_to(3);
    assert_eq!(scene.state.facts.extras, Extras::default());
    let bytes = scene.state.snapshot();
    // All that is new is six nothings at the end, and the level at the beginning.
    assert_eq!(bytes.len(), before.len() + 6);
    assert!(bytes.ends_with(&[0; 6]));
    let mut restored = State::blank(LEVEL);
    restored.restore(&bytes).unwrap();
    assert_eq!(restored, scene.state);
    // Nor does a snapshot of level 2 with something behind it count.
    let longer = [before.as_slice(), &[0; 5]].concat();
    assert!(State::blank(LEVEL).restore(&longer).is_err());
}

#[test]
fn everything_of_the_highest_level_is_in_its_snapshot() {
    let scene = top_scene();
    let mut restored = State::blank(LEVEL);
    restored.restore(&scene.state.snapshot()).unwrap();
    assert_eq!(restored, scene.state);
    assert_eq!(restored.tick().as_millis(), 150);
    assert_eq!(restored.labels(id(1)).count(), 2);
    assert!(restored.is_drained(id(2)) && !restored.is_drained(id(1)));
    assert_eq!(restored.invites().len(), 2);
    assert_eq!(restored.facts.extras.firsts.values().collect::<Vec<_>>(), [&first(4)]);
    assert_eq!(restored.versions().len(), 4);
    assert_eq!(restored.decided().len(), 1);
    assert_eq!(restored.weight(), scene.state.weight());
}

#[test]
fn the_revision_grows_with_whatever_changes_but_names_and_data() {
    let mut scene = Scene::two_at_top();
    let mut last = scene.state.revision();
    let mut grew = |scene: &Scene| {
        let before = std::mem::replace(&mut last, scene.state.revision());
        assert!(last >= before);
        last > before
    };
    let to = Hash([4; 32]);
    let act = NameSet { party: party_id(1), name: name("xray"), expect: None, to };
    scene.act(&node(1), act).unwrap();
    assert!(!grew(&scene));
    let data_before = scene.state.data_revision();
    data_tests::fill(&mut scene);
    assert!(!grew(&scene));
    assert!(scene.state.data_revision() > data_before);
    assert_eq!(scene.act(&node(1), Pace { tick_ms: 0 }), Err(Refusal::BadTick));
    assert!(!grew(&scene));
    let changes: [fn(&mut Scene); 8] = [
        |scene| scene.act(&node(1), Pace { tick_ms: 100 }).unwrap(),
        |scene| scene.act(&node(1), Drain { node: id(1), on: true }).unwrap(),
        |scene| scene.make_ticket(1, 1, 1),
        |scene| scene.open_removal(1, 2),
        |scene| scene.report(1, |report| report.votes = true),
        |scene| scene.seat_voters(&[1, 2]),
        |scene| scene.state.on_recovery(scene.index + 1, 1, RaftId(1)),
        |scene| {
            // As the driver does: into a state that was blank.
            let mut fresh = State::blank(LEVEL);
            fresh.restore(&scene.state.snapshot()).unwrap();
            scene.state = fresh;
        },
    ];
    for (place, change) in changes.iter().enumerate() {
        let before = scene.state.data_revision();
        change(&mut scene);
        assert!(grew(&scene), "change {place}");
        assert!(scene.state.data_revision() > before, "change {place}");
    }
}

#[test]
fn a_snapshot_that_was_cut_or_changed_is_refused_or_stays_canonical() {
    let mut old = full_scene();
    old.raise_to(2);
    for scene in [full_scene(), old, top_scene()] {
        survives_no_damage(&scene.state.snapshot());
    }
}

pub(super) fn survives_no_damage(bytes: &[u8]) {
    for cut in 0..bytes.len() {
        assert!(State::blank(LEVEL).restore(&bytes[..cut]).is_err(), "cut at {cut}");
    }
    for place in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.to_vec();
            changed[place] ^= 1 << bit;
            let mut state = State::blank(LEVEL);
            if state.restore(&changed).is_ok() {
                assert_eq!(state.snapshot(), changed, "byte {place}");
            } else {
                assert_eq!(state, State::blank(LEVEL), "byte {place}");
            }
        }
    }
    let longer = [bytes, &[0]].concat();
    assert!(State::blank(LEVEL).restore(&longer).is_err());
}

fn label(facts: &mut super::Facts, n: u8, count: u8) {
    let value = || "x".parse().unwrap();
    let labels = (0..count).map(|n| (name(&format!("l{n}")), value())).collect();
    facts.extras.labels.insert(id(n), labels);
}

fn invite(facts: &mut super::Facts, n: u8, of: u8) {
    let invite = Invitation { party: party_id(of), expires: Time(9), uses_left: 1 };
    facts.extras.invites.insert(ticket(n), invite);
}

/// So many requests that are over, of party `of`.
fn decide(facts: &mut super::Facts, of: u8, count: usize) {
    let request = Request {
        act: JointAct::RemoveNode { node: id(2) },
        opener: party_id(of),
        opened: Moment::default(),
        expires: Time(9),
        answers: BTreeMap::new(),
    };
    let closed = Moment::default();
    let (id, decision, subject) = (RequestId(5), Decision::Denied, None);
    let one = Decided { id, request, decision, subject, closed };
    facts.decided.extend(vec![one; count]);
}

#[test]
fn a_snapshot_that_breaks_a_rule_is_damaged() {
    let scene = Scene::two_at_top();
    type Damage = fn(&mut super::Facts);
    let decided = "a decided request has an unknown party, or too many are kept";
    let damage: [(Damage, &str); 17] = [
        (|f| f.members.get_mut(&id(2)).unwrap().name = name("n1"), "two members have one name"),
        (
            |f| f.members.get_mut(&id(2)).unwrap().seat = Some(RaftId(1)),
            "two members have one seat",
        ),
        (|f| f.members.get_mut(&id(2)).unwrap().leaving = true, "a leaving member has no seat"),
        (|f| f.removed.extend([id(2)]), "a member has been removed"),
        (|f| f.parties.retain(|p, _| *p == party_id(1)), "a member speaks of an unknown party"),
        (
            |f| {
                let party = Party { name: name("p3"), ..f.parties[&party_id(1)].clone() };
                f.parties.insert(party_id(3), party);
                f.members.get_mut(&id(1)).unwrap().down_by.insert(party_id(3));
            },
            "a party without a node has a say",
        ),
        (
            |f| f.extras.firsts.extend([(RequestId(5), ticket(9))]),
            "a first ticket is of no party to come",
        ),
        (|f| f.extras.tick_ms = Some(0), "a tick has an odd length"),
        (|f| f.extras.tick_ms = Some(2001), "a tick has an odd length"),
        (|f| f.extras.drained.extend([id(9)]), "a stranger is labelled or drained"),
        (|f| label(f, 9, 1), "a stranger is labelled or drained"),
        (|f| label(f, 1, 0), "a node has no labels, or too many"),
        (|f| label(f, 1, 33), "a node has no labels, or too many"),
        (|f| invite(f, 1, 9), "an invite has an unknown party"),
        (|f| invite(f, 102, 1), "a ticket is an invite or another's first, too"),
        (|f| decide(f, 9, 1), decided),
        (|f| decide(f, 1, MAX_DECIDED + 1), decided),
    ];
    for (break_rule, flaw) in damage {
        let mut broken = scene.state.clone();
        assert_eq!(broken.facts.flaw(), None);
        break_rule(&mut broken.facts);
        let halt = State::blank(LEVEL).restore(&broken.snapshot()).unwrap_err();
        assert_eq!(halt, Halt::Damaged(flaw.into()));
    }
}

#[test]
fn a_blank_state_listens_to_nobody_and_survives_a_snapshot() {
    let mut blank = State::blank(LEVEL);
    assert!(!blank.may_write(id(1)));
    let at = Scene::new().at(&node(1));
    for kind in [0, 3, 11, 16, u16::MAX] {
        let command = Command { kind, body: Act::from(Rejoin {}).command().body };
        let refused = Outcome::Refused(Refusal::UnknownKind.code());
        assert_eq!(blank.apply(&at, &command), Ok(refused));
    }
    let mut other = State::blank(LEVEL);
    other.restore(&blank.snapshot()).unwrap();
    assert_eq!(other, blank);
}

#[test]
fn a_body_that_is_not_its_kinds_encoding_is_refused() {
    let mut scene = Scene::at_top();
    let at = scene.at(&node(1));
    let refused = Ok(Outcome::Refused(Refusal::Malformed.code()));
    for kind in 0..KINDS.len() as u16 {
        for body in [vec![], vec![0xff; 40], vec![0xff; 1 << 16]] {
            assert_eq!(scene.state.apply(&at, &Command { kind, body }), refused, "kind {kind}");
        }
    }
    let mut body = Act::from(Report::assumed(1)).command().body;
    body.push(0);
    assert_eq!(scene.state.apply(&at, &Command { kind: 7, body }), refused);
}

#[test]
fn a_signature_where_none_is_needed_must_still_be_right() {
    let mut scene = Scene::new();
    let act = Act::from(Report::assumed(1));
    let at = scene.at(&node(1));
    let elsewhere = Slot { mesh: MeshId([9; 32]), ..Slot::of(&at) };
    let refused = Ok(Outcome::Refused(Refusal::BadPartySignature.code()));
    assert_eq!(scene.state.apply(&at, &act.signed(&party(1), &elsewhere)), refused);
    assert_eq!(scene.signed(&node(1), &party(1), act), Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn arbitrary_bytes_never_make_restore_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut state = State::blank(LEVEL);
        if state.restore(&bytes).is_ok() {
            prop_assert_eq!(state.snapshot(), bytes);
        }
    }

    #[test]
    fn huge_counts_in_a_snapshot_are_not_believed(
        place in 0usize..8000,
        rest in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        // A real beginning, then a count of 2^63 or so wherever it hits.
        let mut bytes = TOP.clone();
        bytes.truncate(place % bytes.len());
        bytes.extend_from_slice(&[0xff; 8]);
        bytes.push(0x7f);
        bytes.extend_from_slice(&rest);
        let mut state = State::blank(LEVEL);
        if state.restore(&bytes).is_ok() {
            // It hit no count but a time, which may be as late as it likes.
            prop_assert_eq!(state.snapshot(), bytes);
        }
    }

    #[test]
    fn arbitrary_bodies_never_make_apply_panic(
        kind in 0..KINDS.len() as u16,
        body in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut scene = Scene::new();
        scene.raise_to(LEVEL);
        let at = scene.at(&node(1));
        let before = scene.state.snapshot();
        if scene.state.apply(&at, &Command { kind, body }) != Ok(Outcome::Done) {
            prop_assert_eq!(scene.state.snapshot(), before);
        }
    }
}
