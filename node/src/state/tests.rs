//! Promises of the state as a whole: it never panics, it is the same everywhere, and a snapshot is
//! all of it.

use mesh_consensus::command::Command;
use mesh_consensus::id::{Hash, MeshId, NodeId, RaftId};
use mesh_consensus::log::Config;
use mesh_consensus::machine::{At, Halt, Outcome, StateMachine};
use mesh_consensus::time::Time;
use proptest::prelude::*;

use super::State;
use super::command::{Act, KINDS, NameSet, Rejoin, Report};
use super::founding::mesh_id;
use super::party::Slot;
use super::refusal::Refusal;
use super::testing::{Scene, any_act, founding, id, name, node, party, party_id};
use super::ticket::sign_consent;

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
    let mut guide = State::genesis(founding(), 2).unwrap();
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
                command.kind = random.u16(0..14);
                Step::Apply(at, command)
            }
            _ => {
                let mut act = any_act(&mut random, time);
                let signer = make_likely(&mut act, &guide, &mut random);
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
fn make_likely(act: &mut Act, guide: &State, random: &mut fastrand::Rng) -> u8 {
    let there: Vec<u8> = (1..5).filter(|n| guide.parties().contains_key(&party_id(*n))).collect();
    let signer = if random.u8(0..10) == 0 { 4 } else { random.choice(there).unwrap_or(1) };
    if random.u8(0..10) == 0 {
        return signer;
    }
    match act {
        Act::TicketNew(act) => act.party = party_id(signer),
        Act::Admit(act) => {
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
        Act::RequestSign(act) => {
            let open = guide.requests().keys().copied();
            act.request = random.choice(open).unwrap_or(act.request);
        }
        _ => {}
    }
    signer
}

fn random_len(seed: u64, index: u64) -> usize {
    usize::try_from((seed ^ index) % 300).unwrap()
}

#[test]
fn any_history_gives_two_replicas_the_same_bytes_and_a_snapshot_is_all_of_it() {
    let mut done = std::collections::BTreeMap::<u16, u32>::new();
    let mut reasons = std::collections::BTreeSet::new();
    for seed in 0..30 {
        let steps = history(seed, 300);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut first = State::genesis(founding(), 2).unwrap();
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
                second = State::blank(2);
                second.restore(&bytes).unwrap();
                assert_eq!(second.snapshot(), bytes, "seed {seed} step {place}");
            }
        }
        assert_eq!(first.snapshot(), second.snapshot(), "seed {seed}");
        assert_eq!(first, second, "seed {seed}");
    }
    // The histories are worth something only if every kind took effect and most refusals came.
    assert_eq!(done.len(), KINDS.len(), "{done:?}");
    assert!(reasons.len() > 25, "{reasons:?}");
    assert!(reasons.contains(&Refusal::BadConsent.code()), "{reasons:?}");
}

#[test]
fn old_and_new_binaries_agree_until_the_old_one_stops() {
    let mut stopped = 0;
    for seed in 0..20 {
        let mut new = State::genesis(founding(), 2).unwrap();
        let mut old = State::genesis(founding(), 1).unwrap();
        for step in history(seed, 300) {
            let outcome = take(&mut new, &step);
            match take(&mut old, &step) {
                Err(Halt::TooOld { level: 2, supports: 1, .. }) => {
                    stopped += 1;
                    break;
                }
                other => assert_eq!(outcome, other, "seed {seed}"),
            }
            assert_eq!(new.snapshot(), old.snapshot(), "seed {seed}");
        }
        assert_eq!(new.level().number == 2, old.level() != new.level());
    }
    assert!(stopped > 0, "no history raised the level");
}

#[test]
fn a_snapshot_that_was_cut_or_changed_is_refused_or_stays_canonical() {
    let mut scene = Scene::of_parties(3);
    scene.make_ticket(1, 1, 3);
    scene.open_removal(1, 2);
    let to = Hash([4; 32]);
    let act = NameSet { party: party_id(1), name: name("xray"), expect: None, to };
    scene.act(&node(1), act).unwrap();
    let bytes = scene.state.snapshot();
    for cut in 0..bytes.len() {
        assert!(State::blank(2).restore(&bytes[..cut]).is_err(), "cut at {cut}");
    }
    for place in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[place] ^= 1 << bit;
            let mut state = State::blank(2);
            if state.restore(&changed).is_ok() {
                assert_eq!(state.snapshot(), changed, "byte {place}");
            } else {
                assert_eq!(state, State::blank(2), "byte {place}");
            }
        }
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    assert!(State::blank(2).restore(&longer).is_err());
}

#[test]
fn a_snapshot_that_breaks_a_rule_is_damaged() {
    let scene = Scene::two_parties();
    type Damage = fn(&mut super::Facts);
    let damage: [(Damage, &str); 5] = [
        (|f| f.members.get_mut(&id(2)).unwrap().name = name("n1"), "two members have one name"),
        (
            |f| f.members.get_mut(&id(2)).unwrap().seat = Some(RaftId(1)),
            "two members have one seat",
        ),
        (|f| f.members.get_mut(&id(2)).unwrap().leaving = true, "a leaving member has no seat"),
        (|f| f.removed.extend([id(2)]), "a member has been removed"),
        (|f| f.parties.retain(|p, _| *p == party_id(1)), "a member speaks of an unknown party"),
    ];
    for (break_rule, flaw) in damage {
        let mut broken = scene.state.clone();
        break_rule(&mut broken.facts);
        let halt = State::blank(2).restore(&broken.snapshot()).unwrap_err();
        assert_eq!(halt, Halt::Damaged(flaw.into()));
    }
}

#[test]
fn a_blank_state_listens_to_nobody_and_survives_a_snapshot() {
    let mut blank = State::blank(2);
    assert!(!blank.may_write(id(1)));
    let at = Scene::new().at(&node(1));
    for kind in [0, 3, 11, u16::MAX] {
        let command = Command { kind, body: Act::from(Rejoin {}).command().body };
        let refused = Outcome::Refused(Refusal::UnknownKind.code());
        assert_eq!(blank.apply(&at, &command), Ok(refused));
    }
    let mut other = State::blank(2);
    other.restore(&blank.snapshot()).unwrap();
    assert_eq!(other, blank);
}

#[test]
fn a_body_that_is_not_its_kinds_encoding_is_refused() {
    let mut scene = Scene::new();
    let at = scene.at(&node(1));
    let refused = Ok(Outcome::Refused(Refusal::Malformed.code()));
    for kind in 0..11 {
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
        let mut state = State::blank(2);
        if state.restore(&bytes).is_ok() {
            prop_assert_eq!(state.snapshot(), bytes);
        }
    }

    #[test]
    fn huge_counts_in_a_snapshot_are_not_believed(
        place in 0usize..400,
        rest in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        // A real beginning, then a count of 2^63 or so wherever it hits.
        let mut bytes = Scene::new().state.snapshot();
        bytes.truncate(place);
        bytes.extend_from_slice(&[0xff; 8]);
        bytes.push(0x7f);
        bytes.extend_from_slice(&rest);
        prop_assert!(State::blank(2).restore(&bytes).is_err());
    }

    #[test]
    fn arbitrary_bodies_never_make_apply_panic(
        kind in 0u16..14,
        body in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut scene = Scene::new();
        scene.raise_to_two();
        let at = scene.at(&node(1));
        let before = scene.state.snapshot();
        if scene.state.apply(&at, &Command { kind, body }) != Ok(Outcome::Done) {
            prop_assert_eq!(scene.state.snapshot(), before);
        }
    }
}
