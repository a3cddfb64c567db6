//! What the planner promises: each rule alone, then whatever peers do, then all in a simulated network.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::sim::id;
use super::*;

const LENGTH: u32 = 1 << 20;

fn swarm(chunks: usize) -> Swarm {
    let settings = Settings::default();
    let lengths = vec![LENGTH; chunks];
    Swarm::new(id(0), VersionId([1; 16]), &lengths, Bitmap::new(chunks), 1, settings)
}

fn bits(len: usize, set: impl IntoIterator<Item = usize>) -> Bitmap {
    let mut bits = Bitmap::new(len);
    for at in set {
        bits.set(at);
    }
    bits
}

/// Chunks that a plan asks of a peer by number.
fn of(plan: &Plan, node: NodeId) -> Vec<u32> {
    let asks = plan.asks.iter().filter(|(asked, _)| *asked == node);
    asks.filter_map(|(_, ask)| match ask {
        Ask::Chunk(chunk) => Some(*chunk),
        Ask::Any(_) => None,
    })
    .collect()
}

fn at(millis: u64) -> Time {
    Time(1_000_000 + millis)
}

#[test]
fn the_rarest_chunks_are_asked_for_first() {
    let mut swarm = swarm(40);
    for (peer, chunks) in [(1, 0..39), (2, 0..37), (3, 0..20)] {
        swarm.on_peer(at(0), id(peer), bits(40, chunks));
    }
    let plan = swarm.poll(at(0));
    let mut asked = of(&plan, id(1));
    asked.truncate(2);
    asked.sort_unstable();
    assert_eq!(asked, [37, 38]);
    // Who has something rarer is not asked for what all three have.
    for peer in [1, 2] {
        assert!(of(&plan, id(peer)).iter().all(|chunk| *chunk >= 20));
    }
}

#[test]
fn equally_rare_chunks_are_wanted_in_an_order_of_ones_own() {
    let order = |own: usize| {
        let lengths = vec![LENGTH; 500];
        let settings = Settings { min_credits: 16, ..Settings::default() };
        let version = VersionId([1; 16]);
        let mut swarm = Swarm::new(id(own), version, &lengths, Bitmap::new(500), 1, settings);
        swarm.on_peer(at(0), id(90), bits(500, 0..499));
        of(&swarm.poll(at(0)), id(90))
    };
    assert_eq!(order(1).len(), 16);
    assert_eq!(order(1), order(1));
    assert!(order(1).iter().filter(|chunk| order(2).contains(chunk)).count() < 4);
    assert!(!order(1).is_sorted());
}

#[test]
fn a_peer_is_asked_ahead_for_what_fills_the_way_and_two() {
    let mut swarm = swarm(400);
    swarm.on_peer(at(0), id(1), bits(400, 0..399));
    swarm.on_rtt(id(1), Duration::from_millis(100));
    let mut now = 0;
    let mut owed = of(&swarm.poll(at(0)), id(1));
    assert_eq!(owed.len(), 3);
    let mut answer = |swarm: &mut Swarm, millis: u64| {
        for _ in 0..20 {
            now += millis;
            swarm.on_chunk(at(now), id(1), owed.remove(0), true);
            owed.extend(of(&swarm.poll(at(now)), id(1)));
        }
        owed.len()
    };
    // A chunk in 20 ms: five are on a way of 100 ms.
    assert_eq!(answer(&mut swarm, 20), 7);
    assert_eq!(answer(&mut swarm, 1), 16);
    assert_eq!(answer(&mut swarm, 500), 3);
}

#[test]
fn who_should_send_it_first_is_asked() {
    let mut swarm = swarm(300);
    let mut owed: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for peer in [1, 2] {
        swarm.on_peer(at(0), id(peer), bits(300, 0..299));
    }
    let mut came = [0; 3];
    for now in 0..1000 {
        let plan = swarm.poll(at(now));
        for peer in [1, 2] {
            let owed = owed.entry(peer).or_default();
            owed.retain(|chunk| !plan.cancels.contains(&(id(peer), *chunk)));
            owed.extend(of(&plan, id(peer)));
            let pace = if peer == 1 { 10 } else { 100 };
            if now % pace == 0 && !owed.is_empty() {
                swarm.on_chunk(at(now), id(peer), owed.remove(0), true);
                came[peer] += 1;
            }
        }
    }
    assert!(came[1] >= 90 && came[2] >= 5, "{came:?}");
    assert_eq!(swarm.progress().duplicates, 0);
}

#[test]
fn what_does_not_come_is_asked_elsewhere() {
    let mut swarm = swarm(3);
    swarm.on_peer(at(0), id(1), bits(3, [0, 1]));
    let mut asked = of(&swarm.poll(at(0)), id(1));
    asked.sort_unstable();
    assert_eq!(asked, [0, 1]);
    // While nobody else has it there is no use in giving up.
    let plan = swarm.poll(at(2000));
    assert!(plan.cancels.is_empty() && plan.asks.is_empty());
    swarm.on_peer(at(2100), id(2), bits(3, [0, 1]));
    let mut now = 2100;
    let mut moved = Vec::new();
    while moved.len() < 2 && now < 10_000 {
        let plan = swarm.poll(at(now));
        moved.extend(of(&plan, id(2)));
        assert!(of(&plan, id(1)).is_empty());
        now = plan.wake_at.unwrap().0 - 1_000_000;
    }
    moved.sort_unstable();
    assert_eq!(moved, [0, 1]);
    assert!(swarm.progress().timeouts >= 1);
}

#[test]
fn a_peer_that_sends_is_not_given_up() {
    let mut swarm = swarm(3);
    swarm.on_peer(at(0), id(1), bits(3, [0]));
    assert_eq!(of(&swarm.poll(at(0)), id(1)), [0]);
    swarm.on_peer(at(1), id(2), bits(3, [0]));
    swarm.on_began(at(1900), id(1), 0);
    assert!(swarm.poll(at(2500)).asks.is_empty());
    assert_eq!(of(&swarm.poll(at(3900)), id(2)), [0]);
}

#[test]
fn a_peer_that_trickles_is_given_up_in_the_end() {
    let mut swarm = swarm(3);
    swarm.on_peer(at(0), id(1), bits(3, [0]));
    assert_eq!(of(&swarm.poll(at(0)), id(1)), [0]);
    swarm.on_peer(at(1), id(2), bits(3, [0]));
    for second in 1..16 {
        swarm.on_began(at(1000 * second), id(1), 0);
        assert!(swarm.poll(at(1000 * second)).asks.is_empty());
    }
    swarm.on_began(at(16_000), id(1), 0);
    assert_eq!(of(&swarm.poll(at(16_000)), id(2)), [0]);
}

#[test]
fn the_endgame_asks_twice_at_most_and_cancels_the_loser() {
    let mut swarm = swarm(2);
    swarm.on_peer(at(0), id(1), bits(2, [0]));
    assert_eq!(of(&swarm.poll(at(0)), id(1)), [0]);
    swarm.on_began(at(1), id(1), 0);
    for peer in [2, 3] {
        swarm.on_peer(at(1), id(peer), bits(2, [0]));
    }
    // It stalls after its first bytes. Chunk 1 is not asked for yet: no endgame.
    swarm.on_gone(at(1), id(3));
    let plan = swarm.poll(at(100));
    assert!(plan.asks.is_empty() && plan.cancels.is_empty(), "{plan:?}");
    swarm.on_peer(at(200), id(4), bits(2, [1]));
    assert_eq!(of(&swarm.poll(at(200)), id(4)), [1]);
    // Now all is asked for, and the other one waits: it is asked again of one who is idle.
    swarm.on_refused(at(201), id(1), 7);
    let Some(peer) = swarm.peers.get_mut(&id(1)) else { panic!() };
    peer.rest(at(201), Duration::from_secs(5));
    let plan = swarm.poll(at(202));
    assert_eq!(of(&plan, id(2)), [0]);
    assert!(plan.cancels.is_empty());
    swarm.on_peer(at(203), id(5), bits(2, [0]));
    assert!(swarm.poll(at(203)).asks.is_empty());
    swarm.on_chunk(at(250), id(2), 0, true);
    assert_eq!(swarm.poll(at(250)).cancels, [(id(1), 0)]);
}

#[test]
fn what_waits_at_a_busy_peer_moves_to_an_idle_one() {
    let mut swarm = swarm(5);
    swarm.on_peer(at(0), id(1), bits(5, 0..4));
    let mut asked = of(&swarm.poll(at(0)), id(1));
    assert_eq!(asked.len(), 3);
    swarm.on_chunk(at(400), id(1), asked.remove(0), true);
    asked.extend(of(&swarm.poll(at(400)), id(1)));
    swarm.on_began(at(401), id(1), asked[0]);
    swarm.on_peer(at(410), id(2), bits(5, 0..4));
    let plan = swarm.poll(at(410));
    let moved = of(&plan, id(2));
    assert_eq!(moved.len(), 1);
    assert_eq!(plan.cancels, [(id(1), moved[0])]);
    assert_ne!(moved[0], asked[0], "what is coming stays");
}

#[test]
fn a_liar_is_dropped_for_good_and_its_chunks_are_asked_elsewhere() {
    let mut swarm = swarm(9);
    swarm.on_others(&[id(1), id(2)]);
    assert_eq!(swarm.poll(at(0)).link.len(), 2);
    swarm.on_peer(at(0), id(1), bits(9, 0..3));
    let asked = of(&swarm.poll(at(0)), id(1));
    assert_eq!(asked.len(), 3);
    swarm.on_peer(at(0), id(2), bits(9, 0..3));
    swarm.on_chunk(at(1), id(1), asked[0], false);
    let plan = swarm.poll(at(1));
    assert_eq!(plan.drop, [id(1)]);
    assert_eq!(of(&plan, id(2)).len(), 3);
    swarm.on_others(&[id(1)]);
    swarm.on_sources(&[id(1)]);
    assert!(!swarm.poll(at(100_000)).link.contains(&id(1)));
    swarm.on_peer(at(100_000), id(1), bits(9, 0..9));
    let plan = swarm.poll(at(100_000));
    assert!(plan.drop == [id(1)] && of(&plan, id(1)).is_empty());
}

#[test]
fn words_about_chunks_that_do_not_exist_are_lies() {
    let lies: [fn(&mut Swarm); 4] = [
        |swarm| swarm.on_peer(at(0), id(1), Bitmap::full(8)),
        |swarm| swarm.on_peer(at(0), id(1), Bitmap::full(10)),
        |swarm| swarm.on_have(id(1), &[1, 9]),
        |swarm| swarm.on_chunk(at(0), id(1), u32::MAX, true),
    ];
    for lie in lies {
        let mut swarm = swarm(9);
        swarm.on_peer(at(0), id(1), bits(9, 0..3));
        lie(&mut swarm);
        let plan = swarm.poll(at(0));
        assert!(plan.drop == [id(1)] && plan.asks.is_empty());
    }
}

#[test]
fn who_refuses_is_left_alone_for_a_while() {
    let mut swarm = swarm(9);
    swarm.on_peer(at(0), id(1), bits(9, [4]));
    assert_eq!(of(&swarm.poll(at(0)), id(1)), [4]);
    swarm.on_refused(at(10), id(1), 4);
    let plan = swarm.poll(at(10));
    assert!(plan.asks.is_empty());
    assert_eq!(plan.wake_at, Some(at(510)));
    // Nobody else has it: after the rest it is asked again, and then left alone for longer.
    assert_eq!(of(&swarm.poll(at(510)), id(1)), [4]);
    swarm.on_refused(at(520), id(1), 4);
    assert_eq!(swarm.poll(at(520)).wake_at, Some(at(1520)));
    // Once another has it, that one is asked.
    swarm.on_peer(at(600), id(2), bits(9, [4]));
    assert_eq!(of(&swarm.poll(at(600)), id(2)), [4]);
}

#[test]
fn a_lone_source_chooses_and_is_spared_afterwards() {
    let mut swarm = swarm(20);
    swarm.on_peer(at(0), id(1), Bitmap::full(20));
    swarm.on_peer(at(0), id(2), bits(20, [5, 6]));
    let plan = swarm.poll(at(0));
    assert!(plan.asks.contains(&(id(1), Ask::Any(3))));
    assert!(of(&plan, id(1)).is_empty());
    assert_eq!(of(&plan, id(2)).len(), 2);
    swarm.on_chunk(at(50), id(1), 9, true);
    assert_eq!(swarm.poll(at(50)).asks, [(id(1), Ask::Any(1))]);
    swarm.on_nothing(id(1));
    swarm.on_have(id(2), &(0..15).collect::<Vec<u32>>());
    // Now it is asked by number, but only for what nobody else has.
    let plan = swarm.poll(at(60));
    assert!(plan.asks.iter().all(|(_, ask)| matches!(ask, Ask::Chunk(_))));
    let of_source = of(&plan, id(1));
    assert!(of_source.len() == 3 && of_source.iter().all(|chunk| *chunk >= 15), "{of_source:?}");
}

#[test]
fn what_a_source_has_begun_to_send_is_asked_of_nobody() {
    let mut swarm = swarm(6);
    swarm.on_peer(at(0), id(1), Bitmap::full(6));
    assert_eq!(swarm.poll(at(0)).asks, [(id(1), Ask::Any(3))]);
    for chunk in [0, 1, 2] {
        swarm.on_began(at(10), id(1), chunk);
    }
    // That there is nothing more to choose is heard before what it sent is written.
    swarm.on_nothing(id(1));
    let mut asked = of(&swarm.poll(at(11)), id(1));
    swarm.on_chunk(at(12), id(1), 0, true);
    asked.extend(of(&swarm.poll(at(12)), id(1)));
    assert!(asked.iter().all(|chunk| *chunk >= 3), "{asked:?}");
    // Nor of another source, nor once the first is given up for a while.
    swarm.on_peer(at(13), id(2), Bitmap::full(6));
    assert!(of(&swarm.poll(at(13)), id(2)).iter().all(|chunk| *chunk >= 3));
}

#[test]
fn nothing_is_named_while_a_source_is_choosing() {
    let mut swarm = swarm(40);
    swarm.on_peer(at(0), id(1), Bitmap::full(40));
    assert_eq!(swarm.poll(at(0)).asks.len(), 1);
    swarm.on_peer(at(1), id(2), Bitmap::full(40));
    assert_eq!(swarm.poll(at(1)).asks, [], "it may be choosing just that");
    for chunk in [7, 8, 9] {
        swarm.on_began(at(2), id(1), chunk);
    }
    let plan = swarm.poll(at(2));
    assert!(!of(&plan, id(2)).is_empty());
    assert!(of(&plan, id(2)).iter().all(|chunk| !(7..=9).contains(chunk)));
}

#[test]
fn a_chunk_that_comes_while_another_is_written_is_still_coming() {
    let mut swarm = swarm(2);
    swarm.on_peer(at(0), id(1), bits(2, [0, 1]));
    swarm.on_nothing(id(1));
    let mut owed = of(&swarm.poll(at(0)), id(1));
    owed.sort_unstable();
    assert_eq!(owed, [0, 1]);
    swarm.on_began(at(10), id(1), 0);
    swarm.on_began(at(20), id(1), 1);
    swarm.on_chunk(at(21), id(1), 0, true);
    // However slow it seems, nobody else is asked for what is coming.
    swarm.on_peer(at(22), id(2), bits(2, [0, 1]));
    for now in (1_000..1_900).step_by(100) {
        let plan = swarm.poll(at(now));
        assert_eq!((of(&plan, id(2)), plan.cancels), (vec![], vec![]), "at {now}");
    }
}

#[test]
fn several_sources_are_asked_by_number() {
    let mut swarm = swarm(20);
    swarm.on_peer(at(0), id(1), Bitmap::full(20));
    swarm.on_peer(at(0), id(2), Bitmap::full(20));
    let plan = swarm.poll(at(0));
    assert_eq!((of(&plan, id(1)).len(), of(&plan, id(2)).len()), (3, 3));
    assert_eq!(plan.asks.len(), 6);
}

#[test]
fn links_are_few_mutual_and_with_sources_first() {
    let nodes: Vec<NodeId> = (0..5000).map(id).collect();
    let mut swarm = swarm(20);
    swarm.on_others(&nodes);
    swarm.on_sources(&[id(7001), id(7002), id(7003)]);
    let link = swarm.poll(at(0)).link;
    let room = swarm.settings.links + swarm.settings.sources;
    assert_eq!(link.len(), room);
    assert!(link[..2].iter().all(|node| [id(7001), id(7002), id(7003)].contains(node)));
    assert!(!link.contains(&id(0)), "not with itself");
    assert!(swarm.poll(at(1)).link.is_empty());
    // Whoever cannot be reached makes room for another, and is tried again later.
    swarm.on_gone(at(2), link[5]);
    let other = swarm.poll(at(2)).link;
    assert!(other.len() == 1 && !link.contains(&other[0]));
    // What was not answered is given up.
    assert_eq!(swarm.poll(at(10_000)).link.len(), room - 1);
    assert_eq!(
        links::pair(VersionId([1; 16]), id(3), id(4)),
        links::pair(VersionId([1; 16]), id(4), id(3)),
    );
}

#[test]
fn a_finished_pull_says_so() {
    let mut swarm = swarm(1);
    swarm.on_peer(at(0), id(1), bits(1, []));
    assert!(!swarm.poll(at(0)).done);
    swarm.on_have(id(1), &[0]);
    assert_eq!(of(&swarm.poll(at(0)), id(1)), [0]);
    swarm.on_chunk(at(5), id(1), 0, true);
    let plan = swarm.poll(at(5));
    assert!(plan.done && plan.wake_at.is_none() && plan.asks.is_empty());
    assert!(
        Swarm::new(id(0), VersionId([1; 16]), &[], Bitmap::new(0), 1, Settings::default())
            .poll(at(0))
            .done
    );
}

/// What a peer of the tests below does with an ask.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Manner {
    Honest,
    Liar,
    Mute,
    Refuser,
    /// Closes its stream now and then.
    Fickle,
}

/// Random peers around one planner, checked at every step.
struct Yard {
    swarm: Swarm,
    now: u64,
    told: BTreeMap<NodeId, Bitmap>,
    manners: BTreeMap<NodeId, Manner>,
    queues: BTreeMap<NodeId, Vec<Ask>>,
    /// By whom each chunk is owed.
    owed: BTreeMap<u32, Vec<NodeId>>,
    rng: fastrand::Rng,
}

impl Yard {
    /// Polls, and checks what may never be.
    fn poll(&mut self) -> (bool, Option<Time>) {
        let plan = self.swarm.poll(at(self.now));
        for node in &plan.drop {
            self.close(*node);
        }
        for (node, chunk) in &plan.cancels {
            if let Some(queue) = self.queues.get_mut(node) {
                queue.retain(|ask| *ask != Ask::Chunk(*chunk));
            }
            self.owed.entry(*chunk).or_default().retain(|owing| owing != node);
        }
        for (node, ask) in &plan.asks {
            let has = self.told.get(node).expect("only linked peers are asked");
            self.queues.entry(*node).or_default().push(*ask);
            let Ask::Chunk(chunk) = ask else {
                assert!(has.is_full(), "only complete peers choose");
                continue;
            };
            assert!(has.get(*chunk as usize), "a peer is asked for what it has");
            assert!(!self.swarm.have().get(*chunk as usize), "what is here is not asked for");
            self.owed.entry(*chunk).or_default().push(*node);
        }
        let missing = self.swarm.have().len() - self.swarm.have().count();
        self.owed.retain(|_, nodes| !nodes.is_empty());
        let chosen: usize = self.swarm.peers.values().map(|peer| peer.any as usize).sum();
        for (node, _) in plan.asks.iter().filter(|(_, ask)| matches!(ask, Ask::Chunk(_))) {
            let peer = &self.swarm.peers[node];
            assert!(peer.owes() <= 17);
        }
        assert!(self.owed.values().all(|nodes| nodes.len() <= 2), "never more than two copies");
        let is_endgame = self.owed.len() + chosen >= missing;
        for (_, ask) in &plan.asks {
            let Ask::Chunk(chunk) = ask else { continue };
            let copies = self.owed.get(chunk).map_or(0, Vec::len);
            assert!(copies == 1 || is_endgame, "twice in the endgame only");
        }
        let room = self.swarm.settings.links + self.swarm.settings.sources;
        assert!(self.swarm.peers.len() <= room);
        for node in plan.link {
            if let Some(has) = self.told.get(&node).cloned() {
                self.swarm.on_peer(at(self.now), node, has);
            } else {
                self.swarm.on_gone(at(self.now), node);
            }
        }
        (plan.done, plan.wake_at)
    }

    fn close(&mut self, node: NodeId) {
        self.queues.remove(&node);
        for nodes in self.owed.values_mut() {
            nodes.retain(|owing| *owing != node);
        }
    }

    /// Somebody who owes something answers, if anybody does.
    fn answer(&mut self) -> bool {
        let ready = self
            .queues
            .iter()
            .filter(|(node, queue)| !queue.is_empty() && self.manners[*node] != Manner::Mute);
        let ready: Vec<NodeId> = ready.map(|(node, _)| *node).collect();
        let Some(node) = self.rng.choice(&ready).copied() else { return false };
        let ask = self.queues.get_mut(&node).expect("it is there").remove(0);
        let now = at(self.now);
        let manner = self.manners[&node];
        if manner == Manner::Fickle && self.rng.u8(0..4) == 0 {
            self.close(node);
            self.swarm.on_gone(now, node);
            return true;
        }
        let chunk = match ask {
            Ask::Chunk(chunk) => chunk,
            Ask::Any(_) => {
                let missing: Vec<usize> = self.swarm.have().missing().collect();
                match self.rng.choice(&missing) {
                    Some(chunk) if self.rng.bool() => {
                        if let Ask::Any(count @ 2..) = ask {
                            let queue = self.queues.entry(node).or_default();
                            queue.insert(0, Ask::Any(count - 1));
                        }
                        *chunk as u32
                    }
                    _ => {
                        self.swarm.on_nothing(node);
                        return true;
                    }
                }
            }
        };
        self.owed.entry(chunk).or_default().retain(|owing| *owing != node);
        match manner {
            Manner::Refuser => self.swarm.on_refused(now, node, chunk),
            Manner::Liar => {
                self.close(node);
                self.swarm.on_chunk(now, node, chunk, false);
            }
            _ => {
                if self.rng.bool() {
                    self.swarm.on_began(now, node, chunk);
                }
                self.swarm.on_chunk(now, node, chunk, true);
                self.owed.remove(&chunk);
            }
        }
        true
    }
}

fn manner() -> impl Strategy<Value = Manner> {
    prop_oneof![
        3 => Just(Manner::Honest),
        1 => Just(Manner::Liar),
        1 => Just(Manner::Mute),
        1 => Just(Manner::Refuser),
        1 => Just(Manner::Fickle),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_pull_ends_if_honest_peers_have_everything_between_them(
        chunks in 1usize..60,
        manners in prop::collection::vec((manner(), 0u8..4), 1..14),
        seed: u64,
    ) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut told: BTreeMap<NodeId, Bitmap> = BTreeMap::new();
        let mut kinds = BTreeMap::new();
        let mut honest = vec![id(1)];
        kinds.insert(id(1), Manner::Honest);
        for (number, (manner, _)) in manners.iter().enumerate() {
            let node = id(number + 2);
            kinds.insert(node, *manner);
            if *manner == Manner::Honest {
                honest.push(node);
            }
        }
        for (number, node) in kinds.keys().enumerate() {
            let share = manners.get(number).map_or(2, |(_, share)| *share);
            told.insert(*node, bits(chunks, (0..chunks).filter(|_| rng.u8(0..4) <= share)));
        }
        for chunk in 0..chunks {
            let node = rng.choice(&honest).expect("one at least");
            told.get_mut(node).expect("all have one").set(chunk);
        }
        let nodes: Vec<NodeId> = told.keys().copied().collect();
        let mut swarm = swarm(chunks);
        swarm.on_others(&nodes);
        swarm.on_others(&[id(800), id(801)]);
        let (queues, owed) = (BTreeMap::new(), BTreeMap::new());
        let mut yard = Yard { swarm, now: 0, told, manners: kinds, queues, owed, rng };
        let mut is_done = false;
        for _ in 0..20_000 {
            let (done, wake_at) = yard.poll();
            is_done = done;
            if done {
                break;
            }
            let (done, _) = yard.poll();
            if !done && (yard.rng.u8(0..4) == 0 || !yard.answer()) {
                let wake_at = wake_at.unwrap_or(at(yard.now)).0 - 1_000_000;
                yard.now = wake_at.max(yard.now + 1);
            }
        }
        prop_assert!(is_done, "after {} s: {:?}", yard.now / 1000, yard.swarm.progress());
    }

    #[test]
    fn no_words_of_peers_harm_the_planner(
        words in prop::collection::vec((0u8..11, 0usize..24, any::<u32>(), 0u64..4000), 0..400),
        chunks in 0usize..40,
    ) {
        let mut swarm = swarm(chunks);
        let mut serve = Serve::new(&vec![LENGTH; chunks], 1, ServeSettings::default());
        let mut now = 0;
        for (kind, peer, number, passed) in words {
            let node = id(peer);
            // Mostly numbers that exist.
            let chunk = if number % 16 == 0 { number } else { number % (chunks as u32 + 1) };
            let len = if number % 8 == 0 { number as usize % 50 } else { chunks };
            match kind {
                0 => swarm.on_peer(at(now), node, bits(len, (0..len).filter(|at| number >> (at % 32) & 1 == 1))),
                1 => swarm.on_peer(at(now), node, Bitmap::full(len)),
                2 => swarm.on_have(node, &[chunk, chunk / 2, chunk]),
                3 => swarm.on_chunk(at(now), node, chunk, number % 7 > 0),
                4 => swarm.on_refused(at(now), node, chunk),
                5 => swarm.on_nothing(node),
                6 => swarm.on_gone(at(now), node),
                7 => swarm.on_others(&(0..200).map(|n| id(peer * 200 + n)).collect::<Vec<_>>()),
                8 => swarm.on_began(at(now), node, chunk),
                9 => {
                    serve.on_peer(node, bits(len, [chunk as usize]));
                    serve.on_have(node, &[chunk]);
                    serve.on_cancel(node, chunk / 2);
                }
                _ => {
                    serve.on_ask(node, Ask::Chunk(chunk));
                    serve.on_ask(node, Ask::Any(number));
                    if number % 3 == 0 { serve.on_sent(node); }
                    if number % 5 == 0 { serve.on_gone(node); }
                }
            }
            while serve.next(at(now), &Bitmap::full(chunks)).is_some() {}
            let plan = swarm.poll(at(now));
            for (node, ask) in &plan.asks {
                if let Ask::Chunk(chunk) = ask {
                    prop_assert!(swarm.peers[node].has.get(*chunk as usize));
                }
            }
            let room = swarm.settings.links + swarm.settings.sources;
            prop_assert!(swarm.peers.len() <= room && plan.link.len() <= room);
            prop_assert!(swarm.peers.values().all(|peer| peer.owes() <= 17));
            prop_assert!(swarm.asked.values().all(|nodes| (1..=2).contains(&nodes.len())));
            let owed: usize = swarm.peers.values().map(|peer| peer.asked.len()).sum();
            prop_assert_eq!(owed, swarm.asked.values().map(Vec::len).sum::<usize>());
            now += passed * u64::from(number % 3 == 0);
        }
    }
}
