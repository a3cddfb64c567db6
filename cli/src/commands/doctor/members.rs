//! The others: who is silent, who cannot be reached, and whether UDP is the reason.
//!
//! The node asks each of them whether it is there: what it remembers, connections among it, is older than that.
//!
//! Data goes over UDP alone, gossip over UDP or TCP. So one that takes a connection by TCP, and none by UDP, is there and
//! cut off; one that takes neither has stopped, most likely, and UDP is not to blame.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use mesh_consensus::autopilot::{fair, target};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Finding;
use crate::answers::{Link, Node, Reach, Status};
use crate::client::Api;
use crate::report::Report;
use crate::view::{ago, count};

/// A round trip beyond this is felt by every write.
const SLOW_RTT_MS: f64 = 150.0;
/// Whoever was heard by gossip within this time is there, whatever its links say. Members tell of themselves more
/// often than this.
const HEARD_MS: u64 = 60_000;
/// So many members are tried by TCP, at so many addresses each: those that are missing tell enough.
const MAX_TRIED: usize = 32;
const MAX_ADDRESSES: usize = 4;
/// Whoever takes no connection within this time takes none.
const CONNECT: Duration = Duration::from_secs(2);

/// `here` says whether the node that is asked runs on this machine: from another, a connection proves nothing.
pub(super) async fn check(api: &Api, here: bool) -> Result<Vec<Finding>, Report> {
    let status: Status = api.get("/v1/status").await?.item()?;
    // First: there is a connection then with everyone who answered. An older node cannot be asked for this.
    let reached: Vec<Reach> = match api.get("/v1/reach").await {
        Ok(answer) => answer.items()?,
        Err(_) => Vec::new(),
    };
    let mut nodes: Vec<Node> = api.get("/v1/nodes").await?.items()?;
    let mut links: Vec<Link> = api.get("/v1/links").await?.items()?;
    believe(&reached, &mut nodes, &mut links);
    let mute = if here { mute(&status, &nodes, &links).await } else { BTreeSet::new() };
    Ok(judge(&status, &nodes, &links, &mute))
}

/// Believes those who answered a moment ago, or did not, more than what is remembered: a connection outlives the node at
/// its other end by a while.
fn believe(reached: &[Reach], nodes: &mut [Node], links: &mut Vec<Link>) {
    for one in reached {
        for node in nodes.iter_mut().filter(|node| node.id == one.node.id) {
            match (one.answers, is_there(node)) {
                (true, false) => node.state = "up".into(),
                (false, true) => node.state = "silent".into(),
                (true, true) | (false, false) => {}
            }
        }
        links.retain(|link| one.answers || link.node.id != one.node.id);
    }
}

/// Which members take no connection by TCP either, of those to whom there is no link: their ids. One whose addresses are
/// not known is not among them.
async fn mute(status: &Status, nodes: &[Node], links: &[Link]) -> BTreeSet<String> {
    // One that is there may have no business with this node. That nobody has would be odd.
    let is_missed = |node: &&Node| {
        let has_link = link_to(node, links).is_some();
        node.id != status.id && !has_link && (links.is_empty() || !is_there(node))
    };
    let (mut mute, mut tries) = (BTreeSet::new(), JoinSet::new());
    for node in nodes.iter().filter(is_missed).take(MAX_TRIED) {
        let addresses = node.overlay_addresses.iter();
        let addresses = addresses.filter_map(|at| at.parse::<SocketAddr>().ok());
        for address in addresses.take(MAX_ADDRESSES) {
            mute.insert(node.id.clone());
            let id = node.id.clone();
            tries.spawn(async move {
                let connected = timeout(CONNECT, TcpStream::connect(address)).await;
                matches!(connected, Ok(Ok(_))).then_some(id)
            });
        }
    }
    for id in tries.join_all().await.into_iter().flatten() {
        mute.remove(&id);
    }
    mute
}

fn judge(status: &Status, nodes: &[Node], links: &[Link], mute: &BTreeSet<String>) -> Vec<Finding> {
    let mut others: Vec<&Node> = nodes.iter().filter(|node| node.id != status.id).collect();
    if others.is_empty() {
        return vec![Finding::ok(
            "members",
            "this node is alone in its mesh: mesh ticket new lets others in",
        )];
    }
    let mut findings = quorum(nodes, links, mute);
    findings.extend(fewer(nodes));
    let is_alive =
        |node: &Node| !mute.contains(&node.id) && (is_there(node) || is_cut_off(node, links, mute));
    let alive = others.iter().filter(|node| is_alive(node)).count();
    if alive > 0 && links.is_empty() {
        findings.push(Finding::wrong(
            "udp",
            format!(
                "{} heard within a minute, and none can be reached: they have stopped, or UDP is blocked",
                count(alive, "node")
            ),
            "let UDP through to the ports that mesh status names, in and out",
        ));
        // That was said of all but those who have an excuse.
        others.retain(|node| mute.contains(&node.id));
    }
    for node in others {
        findings.push(member(node, links, mute));
    }
    findings
}

/// Whether it can be expected to answer.
fn is_there(node: &Node) -> bool {
    matches!(node.state.as_str(), "up" | "draining" | "leaving")
}

/// Whether it gossips, and no link to it comes about that should be there.
fn is_cut_off(node: &Node, links: &[Link], mute: &BTreeSet<String>) -> bool {
    let missed = !is_there(node) && link_to(node, links).is_none();
    missed && was_heard(node) && !mute.contains(&node.id)
}

/// Whether it was heard lately, by whomever.
fn was_heard(node: &Node) -> bool {
    node.seen_age_ms.is_some_and(|ms| ms <= HEARD_MS)
}

fn link_to<'a>(node: &Node, links: &'a [Link]) -> Option<&'a Link> {
    links.iter().find(|link| {
        let Link { node: at, .. } = link;
        (!at.id.is_empty() && at.id == node.id)
            || (!at.name.is_empty() && (at.name == node.name || at.name == node.id))
    })
}

fn quorum(nodes: &[Node], links: &[Link], mute: &BTreeSet<String>) -> Vec<Finding> {
    let voters: Vec<&Node> = nodes.iter().filter(|node| node.role == "voter").collect();
    let up = voters.iter().filter(|node| is_there(node)).count();
    let majority = voters.len() / 2 + 1;
    let message = format!("{up} of {} are up; {majority} are needed", count(voters.len(), "voter"));
    let cut_off = voters.iter().filter(|node| is_cut_off(node, links, mute)).count();
    vec![match up {
        _ if voters.is_empty() => return Vec::new(),
        // Recovery is for voters that are gone, and these are not.
        up if up < majority && cut_off > 0 => Finding::wrong(
            "voters",
            format!(
                "{up} of {} can be reached; {majority} are needed",
                count(voters.len(), "voter")
            ),
            format!(
                "let UDP through: {} heard by gossip, and not reached",
                count(cut_off, "voter")
            ),
        ),
        up if up < majority => Finding::wrong(
            "voters",
            message,
            "bring voters back; if they are gone for good: mesh help recover",
        ),
        up if up == majority && voters.len() > 2 => Finding::look(
            "voters",
            format!("{message}: no further one may fail"),
            "bring the others back, or add nodes",
        ),
        _ => Finding::ok("voters", message),
    }]
}

/// Why fewer vote than people expect who count the nodes, if it is because of whose they are.
fn fewer(nodes: &[Node]) -> Option<Finding> {
    let mut parties: BTreeMap<&str, usize> = BTreeMap::new();
    for node in nodes.iter().filter(|node| node.state != "leaving") {
        *parties.entry(node.party.shown()).or_default() += 1;
    }
    let counts: Vec<usize> = parties.values().copied().collect();
    let all: usize = counts.iter().sum();
    let (voters, usual) = (nodes.iter().filter(|node| node.role == "voter").count(), target(all));
    if voters >= usual || voters != fair(usual, &counts) {
        return None;
    }
    let (party, most) = parties.into_iter().max_by_key(|(_, nodes)| *nodes)?;
    let message = format!(
        "{voters} of {all} nodes vote and not {usual}: among three or more parties none may have most of the votes, \
         and {most} of the nodes are {party}'s; with more nodes of the others more will vote"
    );
    Some(Finding::ok("voters", message))
}

fn member(node: &Node, links: &[Link], mute: &BTreeSet<String>) -> Finding {
    let name = &node.name;
    let heard = node.seen_age_ms.map_or("never heard".into(), |ms| {
        format!(
            "last heard {}",
            match ago(ms).as_str() {
                "now" => "now".to_owned(),
                age => format!("{age} ago"),
            }
        )
    });
    match link_to(node, links) {
        Some(link) if link.rtt_ms.is_some_and(|ms| ms > SLOW_RTT_MS) => Finding::look(
            "member",
            format!(
                "{name} answers from {} after {:.0} ms",
                link.address,
                link.rtt_ms.unwrap_or_default()
            ),
            "mesh node show NODE; voters should be near one another",
        ),
        Some(link) => {
            let rtt = link.rtt_ms.map(|ms| format!(" in {ms:.1} ms")).unwrap_or_default();
            let path = link
                .path
                .as_deref()
                .filter(|path| *path != "direct")
                .map(|path| format!(", {path}"))
                .unwrap_or_default();
            Finding::ok("member", format!("{name} answers from {}{rtt}{path}", link.address))
        }
        None if mute.contains(&node.id) => {
            let at = [node.addresses.first(), node.overlay_addresses.first()];
            let at: Vec<&str> = at.into_iter().flatten().map(String::as_str).collect();
            // It may be there for others: it is too early to speak of removing it.
            let hint = if was_heard(node) {
                let at = at.join(" and ");
                format!("start it there (mesh up); if it runs, let UDP and TCP through to {at}")
            } else {
                format!("start it there (mesh up), or remove it: mesh node rm {name}")
            };
            let message = format!(
                "{name} gives no answer, neither by UDP nor by TCP ({heard}): it is down, or cut off"
            );
            Finding::look("member", message, hint)
        }
        // Nodes without business with one another hold no connection.
        None if is_there(node) => Finding::ok(
            "member",
            format!("{name} is {} ({heard}); nothing is open to it now", node.state),
        ),
        None if is_cut_off(node, links, mute) => Finding::wrong(
            "udp",
            format!(
                "{name} gossips ({heard}), and cannot be reached: it has just stopped, or UDP to it is blocked"
            ),
            match node.addresses.first() {
                Some(at) => {
                    format!("let UDP through to {at}, both ways, and see that it still runs")
                }
                None => {
                    "let UDP through to its data port, both ways, and see that it still runs".into()
                }
            },
        ),
        None => Finding::look(
            "member",
            format!("{name} is {}: no answer ({heard})", node.state),
            format!("start it there (mesh up), or remove it: mesh node rm {name}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;
    use crate::answers::Who;

    fn node(name: &str, state: &str) -> Node {
        Node {
            id: name.repeat(8),
            name: name.into(),
            state: state.into(),
            role: "voter".into(),
            ..Node::default()
        }
    }

    fn link(name: &str) -> Link {
        Link {
            node: Who { id: name.repeat(8), name: name.into() },
            rtt_ms: Some(0.4),
            ..Link::default()
        }
    }

    fn states(nodes: &[Node], links: &[Link]) -> Vec<(&'static str, State)> {
        let status = Status { id: "a".repeat(8), ..Status::default() };
        let found = judge(&status, nodes, links, &BTreeSet::new());
        found.iter().map(|finding| (finding.check, finding.state)).collect()
    }

    /// Heard so long ago, and not linked.
    fn heard(name: &str, ms: u64) -> Node {
        Node {
            seen_age_ms: Some(ms),
            addresses: vec!["10.0.0.9:6374".into()],
            ..node(name, "silent")
        }
    }

    #[test]
    fn members_that_are_heard_but_never_reached_point_at_udp() {
        let nodes = [node("a", "up"), node("b", "up"), node("c", "up")];
        assert!(states(&nodes, &[]).contains(&("udp", State::Wrong)));
        assert!(
            states(&nodes, &[link("b"), link("c")]).iter().all(|(_, state)| *state == State::Ok)
        );
    }

    #[test]
    fn a_member_that_gossips_and_is_not_reached_is_cut_off_and_not_to_be_removed() {
        let all = [node("a", "up"), heard("b", 4000), heard("c", 4000)];
        let status = Status { id: "a".repeat(8), ..Status::default() };
        for links in [vec![], vec![link("c")]] {
            let found = judge(&status, &all, &links, &BTreeSet::new());
            let wrong =
                |finding: &&Finding| finding.check == "udp" && finding.state == State::Wrong;
            assert!(found.iter().any(|finding| wrong(&finding)), "{found:?}");
            for finding in &found {
                assert!(!finding.hint.contains("node rm"), "{finding:?}");
                assert!(!finding.hint.contains("recover"), "{finding:?}");
            }
        }
        let gone = [node("a", "up"), node("b", "up"), heard("c", 90_000)];
        let found = judge(&status, &gone, &[link("b")], &BTreeSet::new());
        assert!(found.iter().any(|finding| finding.hint.contains("node rm c")), "{found:?}");
    }

    #[test]
    fn a_member_that_takes_no_connection_by_tcp_either_is_down_and_udp_is_not_suspected() {
        let status = Status { id: "a".repeat(8), ..Status::default() };
        for (all, links) in [
            ([node("a", "up"), node("b", "up"), heard("c", 4000)], vec![link("b")]),
            ([node("a", "up"), heard("b", 4000), heard("c", 4000)], vec![]),
            // Nobody has missed it yet.
            ([node("a", "up"), node("b", "up"), node("c", "up")], vec![]),
        ] {
            let linked = |node: &Node| link_to(node, &links).is_some();
            let mute = all[1..].iter().filter(|node| !linked(node)).map(|node| node.id.clone());
            let mute: BTreeSet<String> = mute.collect();
            let found = judge(&status, &all, &links, &mute);
            assert!(found.iter().all(|finding| finding.check != "udp"), "{found:?}");
            assert!(
                found.iter().all(|finding| !finding.hint.contains("UDP through:")),
                "{found:?}"
            );
            let says = |finding: &&Finding| finding.message.starts_with("c gives no answer");
            assert_eq!(found.iter().filter(says).count(), 1, "{found:?}");
        }
        // One of two does: UDP to that one is in question, and the other is down.
        let all = [node("a", "up"), heard("b", 4000), heard("c", 4000)];
        let found = judge(&status, &all, &[], &BTreeSet::from(["c".repeat(8)]));
        assert!(found.iter().any(|finding| finding.check == "udp"), "{found:?}");
        assert!(found.iter().any(|one| one.message.starts_with("c gives no answer")), "{found:?}");
    }

    #[test]
    fn whoever_does_not_answer_now_is_not_there_whatever_is_remembered_of_it() {
        let status = Status { id: "a".repeat(8), ..Status::default() };
        let mut all = [node("a", "up"), node("b", "down"), node("c", "up")];
        let mut links = vec![link("b"), link("c")];
        let said = |name: &str, answers: bool| Reach {
            node: Who { id: name.repeat(8), name: name.into() },
            answers,
        };
        believe(&[said("b", true), said("c", false)], &mut all, &mut links);
        let found = judge(&status, &all, &links, &BTreeSet::new());
        let about = |name: &str| {
            let begins = format!("{name} ");
            found.iter().find(|one| one.message.starts_with(&begins)).unwrap()
        };
        assert_eq!(about("b").state, State::Ok, "{found:?}");
        let silent = about("c");
        assert_eq!(silent.state, State::Look, "{found:?}");
        assert!(silent.message.contains("no answer"), "{silent:?}");
        assert!(found[0].message.starts_with("2 of 3 voters are up"), "{found:?}");
        // Without a word from the node it is as before.
        let (mut same, mut links) = (all.clone(), vec![link("b"), link("c")]);
        believe(&[], &mut same, &mut links);
        assert_eq!((same, links.len()), (all, 2));
    }

    #[tokio::test]
    async fn only_who_takes_no_connection_is_mute() {
        let open = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let shut = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = |listener: &std::net::TcpListener| listener.local_addr().unwrap().to_string();
        let with = |name: &str, addresses: Vec<String>| Node {
            overlay_addresses: addresses,
            ..heard(name, 4000)
        };
        let all = [
            node("a", "up"),
            with("b", vec![at(&shut), at(&open)]),
            with("c", vec![at(&shut)]),
            // Where it listens is not known.
            with("d", vec![]),
            // There is a link to it.
            with("e", vec![at(&shut)]),
        ];
        drop(shut);
        let status = Status { id: "a".repeat(8), ..Status::default() };
        let found = mute(&status, &all, &[link("e")]).await;
        assert_eq!(found, BTreeSet::from(["c".repeat(8)]));
    }

    #[test]
    fn a_lost_majority_is_wrong_and_a_bare_one_is_worth_a_look() {
        let links = [link("b")];
        let one_down = [node("a", "up"), node("b", "up"), node("c", "down")];
        assert_eq!(states(&one_down, &links)[0], ("voters", State::Look));
        let two_down = [node("a", "up"), node("b", "down"), node("c", "down")];
        assert_eq!(states(&two_down, &links)[0], ("voters", State::Wrong));
    }

    #[test]
    fn that_fewer_vote_because_of_whose_the_nodes_are_is_said() {
        let of = |party: &str, name: &str, role: &str| Node {
            party: Who { name: party.into(), ..Who::default() },
            role: role.into(),
            ..node(name, "up")
        };
        let mut all = vec![
            of("lab", "a", "voter"),
            of("lab", "b", "learner"),
            of("lab", "c", "learner"),
            of("lab", "d", "watcher"),
            of("clinic-a", "e", "voter"),
            of("clinic-b", "f", "voter"),
        ];
        let said = fewer(&all).unwrap();
        assert_eq!((said.check, said.state), ("voters", State::Ok));
        assert!(said.message.starts_with("3 of 6 nodes vote and not 5"), "{said:?}");
        assert!(said.message.contains("4 of the nodes are lab's"), "{said:?}");
        // With one more of another party five can vote; that they do not yet has another reason.
        all.push(of("clinic-b", "g", "watcher"));
        assert_eq!(fewer(&all), None);
        // Three of three: as people expect.
        let three = [of("x", "a", "voter"), of("y", "b", "voter"), of("z", "c", "voter")];
        assert_eq!(fewer(&three), None);
        assert_eq!(fewer(&[]), None);
    }

    #[test]
    fn a_node_alone_is_well() {
        assert_eq!(states(&[node("a", "up")], &[]), [("members", State::Ok)]);
    }
}
