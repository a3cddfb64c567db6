//! Lies that once did harm, or nearly.

use mesh_chaos_tests::genesis::{BEGINNING, node_id, node_key};
use mesh_consensus::admission::Admission;
use mesh_consensus::admit::Refused;
use mesh_consensus::command::Command;
use mesh_consensus::driver::Status;
use mesh_consensus::id::RaftId;
use mesh_consensus::log::{ConfigChange, Entry, Log, Payload, Seat, Snapshot};
use mesh_consensus::message::{Body, Message};
use mesh_node::state::level::{LEVEL, Level};

use crate::any::stranger;
use crate::{Grown, Happening, VOTERS};

#[test]
fn a_leader_whom_a_liar_has_voted_out_steps_down() {
    let grown = Grown::new(6);
    for seed in 0..20 {
        let mut mesh = grown.mesh(seed);
        let old = mesh.leader().unwrap();
        let (at, liar) = ((old + 1) % VOTERS, (old + 2) % VOTERS);
        let out = ConfigChange::Seats(vec![Seat::Gone(mesh.nodes[at].seat)]);
        let Status { term, last_index, commit, .. } = mesh.driver(at).status();
        let prev_term = mesh.term_at(at, last_index).unwrap();
        let (term, index) = (term + 1, last_index + 1);
        let entries = vec![Entry { term, index, payload: Payload::Config(out) }];
        let body = Body::Append { prev_index: last_index, prev_term, commit, entries };
        mesh.tell(liar, at, term, body);
        mesh.tell(liar, at, term, Body::TimeoutNow);
        // It wins, and has an entry under way when it learns that it was removed.
        while mesh.driver(old).status().last_index < index {
            mesh.deliver_one();
        }
        let batch = mesh.sign(at, mesh.sequences[at] + 1, &[]);
        mesh.turn(at, vec![Happening::Submitted(batch)]);
        mesh.until(|mesh| mesh.leader().is_some_and(|new| new != at));
        assert!(!mesh.driver(old).replica().config().contains(mesh.nodes[at].seat));
    }
}

#[test]
fn a_snapshot_that_raft_ignores_is_not_installed_instead_of_one_that_it_took() {
    let mut mesh = Grown::new(7).mesh(0);
    let leader = mesh.leader().unwrap();
    let at = (leader + 1) % VOTERS;
    let Status { term, last_index, .. } = mesh.driver(at).status();
    let real = mesh.driver(leader).replica().snapshot();
    let of = |index| Body::Snapshot(Snapshot { index, term, ..real.clone() });
    let lies = [(term + 1, last_index + 1), (term, last_index + 9)];
    let lies = lies.map(|(term, index)| {
        Happening::Heard(mesh.nodes[leader].id, mesh.message(leader, at, term, of(index)))
    });
    let (turn, _) = mesh.take_turn(at, lies.into());
    assert_eq!(turn.installed, Some(last_index + 1));
    mesh.restart(at);
}

#[test]
fn nobody_comes_to_lead_before_its_log_is_on_disk() {
    let mut mesh = Grown::new(8).mesh(0);
    let liar = mesh.leader().unwrap();
    let at = (liar + 1) % VOTERS;
    let Status { term, last_index, commit, .. } = mesh.driver(at).status();
    let prev_term = mesh.term_at(at, last_index).unwrap();
    let entries = vec![Entry { term, index: last_index + 1, payload: Payload::Empty }];
    let yes = Body::VoteReply { pre: false, granted: true, commit: 0, commit_term: 0 };
    let lies = [
        (term, Body::Append { prev_index: last_index, prev_term, commit, entries }),
        (term, Body::TimeoutNow),
        (term + 1, yes),
    ];
    let lies = lies.map(|(term, body)| {
        Happening::Heard(mesh.nodes[liar].id, mesh.message(liar, at, term, body))
    });
    let (turn, _) = mesh.take_turn(at, lies.into());
    assert_eq!(turn.refused, [(mesh.nodes[liar].id, Refused::Busy); 2]);
    assert_eq!(mesh.driver(at).log().last_index(), last_index + 1);
}

#[test]
fn a_lying_sponsor_neither_moves_a_member_nor_gives_its_seat_away() {
    let mut mesh = Grown::new(9).mesh(0);
    let leader = mesh.leader().unwrap();
    let (at, liar) = ((leader + 1) % VOTERS, (leader + 2) % VOTERS);
    let (id, seat) = (mesh.nodes[leader].id, mesh.nodes[leader].seat);
    let stranger = node_id(&stranger(&mut mesh.rng));
    let says = |node, seat| {
        let key = &mesh.keys[liar];
        Happening::Shown(vec![Admission::sign(key, mesh.genesis.mesh, 0, node, seat)])
    };
    let lies = [says(id, RaftId(u64::MAX)), says(stranger, seat)];
    mesh.turn(at, lies.into());
    let Status { term, .. } = mesh.driver(at).status();
    let beat = mesh.message(leader, at, term, Body::Heartbeat { commit: 0, read: None });
    let (turn, _) = mesh.take_turn(at, vec![Happening::Heard(id, beat.clone())]);
    assert_eq!(turn.refused, []);
    let turn = mesh.in_vain(at, Happening::Heard(stranger, beat));
    assert_eq!(turn.refused, [(stranger, Refused::Stranger)]);
    mesh.settle();
}

#[test]
fn a_snapshot_that_promises_more_kinds_of_command_than_exist_is_not_installed() {
    let mut mesh = Grown::new(11).mesh(0);
    let leader = mesh.leader().unwrap();
    let at = (leader + 1) % VOTERS;
    let Status { term, last_index, .. } = mesh.driver(at).status();
    let mut snapshot = mesh.driver(leader).replica().snapshot();
    let level = postcard::to_stdvec(&mesh.driver(at).replica().machine().level()).unwrap();
    let place = snapshot.data.windows(level.len()).position(|bytes| bytes == level).unwrap();
    snapshot.data[place + 1] += 1;
    (snapshot.index, snapshot.term) = (last_index + 1, term);
    let kind = Level::known(LEVEL).unwrap().kinds;
    let batch = mesh.sign(4, mesh.sequences[4] + 1, &[Command { kind, body: Vec::new() }]);
    let payload = Payload::Batch { time: BEGINNING, bytes: batch.as_bytes().to_vec() };
    let entries = vec![Entry { term, index: last_index + 2, payload }];
    mesh.tell(leader, at, term, Body::Snapshot(snapshot));
    let (prev_index, prev_term, commit) = (last_index + 1, term, last_index + 2);
    mesh.tell(leader, at, term, Body::Append { prev_index, prev_term, commit, entries });
    mesh.restart(at);
}

#[test]
fn nobody_votes_for_nobody() {
    let mut mesh = Grown::new(10).mesh(0);
    let at = mesh.leader().unwrap();
    let ghost = node_key(100);
    let chain =
        vec![Admission::sign(&mesh.keys[4], mesh.genesis.mesh, 0, node_id(&ghost), RaftId(0))];
    mesh.turn(at, vec![Happening::Shown(chain)]);
    let Status { term, last_index, .. } = mesh.driver(at).status();
    let (last_index, last_term) = (last_index + 9, term);
    let (commit, commit_term, transfer) = (0, 0, true);
    let ask = Body::Vote { pre: false, last_index, last_term, commit, commit_term, transfer };
    let ask = Message { from: RaftId(0), ..mesh.message(4, at, term + 1, ask) };
    let turn = mesh.in_vain(at, Happening::Heard(node_id(&ghost), ask));
    assert_eq!(turn.refused, [(node_id(&ghost), Refused::WrongSeat)]);
}
