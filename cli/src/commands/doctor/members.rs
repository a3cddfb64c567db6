//! The others: who is silent, who cannot be reached, and whether UDP is the reason.

use super::Finding;
use crate::answers::{Link, Node, Status};
use crate::client::Api;
use crate::report::Report;
use crate::view::{ago, count};

/// A round trip beyond this is felt by every write.
const SLOW_RTT_MS: f64 = 150.0;
/// Whoever was heard by gossip within this time is there, whatever its links say. Members tell of themselves more
/// often than this.
const HEARD_MS: u64 = 60_000;

pub(super) async fn check(api: &Api) -> Result<Vec<Finding>, Report> {
    let status: Status = api.get("/v1/status").await?.item()?;
    let nodes: Vec<Node> = api.get("/v1/nodes").await?.items()?;
    let links: Vec<Link> = api.get("/v1/links").await?.items()?;
    Ok(judge(&status, &nodes, &links))
}

fn judge(status: &Status, nodes: &[Node], links: &[Link]) -> Vec<Finding> {
    let others: Vec<&Node> = nodes.iter().filter(|node| node.id != status.id).collect();
    if others.is_empty() {
        return vec![Finding::ok(
            "members",
            "this node is alone in its mesh: mesh ticket new lets others in",
        )];
    }
    let mut findings = quorum(nodes, links);
    let alive: Vec<&&Node> =
        others.iter().filter(|node| is_there(node) || is_cut_off(node, links)).collect();
    if !alive.is_empty() && links.is_empty() {
        findings.push(Finding::wrong(
            "udp",
            format!(
                "{} heard within a minute, and none can be reached: they have stopped, or UDP is blocked",
                count(alive.len(), "node")
            ),
            "let UDP through to the ports that mesh status names, in and out",
        ));
        return findings;
    }
    for node in others {
        findings.push(member(node, links));
    }
    findings
}

/// Whether it can be expected to answer.
fn is_there(node: &Node) -> bool {
    matches!(node.state.as_str(), "up" | "draining" | "leaving")
}

/// Whether it gossips, and no link to it comes about that should be there.
fn is_cut_off(node: &Node, links: &[Link]) -> bool {
    let heard = node.seen_age_ms.is_some_and(|ms| ms <= HEARD_MS);
    heard && !is_there(node) && link_to(node, links).is_none()
}

fn link_to<'a>(node: &Node, links: &'a [Link]) -> Option<&'a Link> {
    links.iter().find(|link| {
        let Link { node: at, .. } = link;
        (!at.id.is_empty() && at.id == node.id)
            || (!at.name.is_empty() && (at.name == node.name || at.name == node.id))
    })
}

fn quorum(nodes: &[Node], links: &[Link]) -> Vec<Finding> {
    let voters: Vec<&Node> = nodes.iter().filter(|node| node.role == "voter").collect();
    let up = voters.iter().filter(|node| is_there(node)).count();
    let majority = voters.len() / 2 + 1;
    let message = format!("{up} of {} are up; {majority} are needed", count(voters.len(), "voter"));
    let cut_off = voters.iter().filter(|node| is_cut_off(node, links)).count();
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

fn member(node: &Node, links: &[Link]) -> Finding {
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
        // Nodes without business with one another hold no connection.
        None if is_there(node) => Finding::ok(
            "member",
            format!("{name} is {} ({heard}); nothing is open to it now", node.state),
        ),
        None if is_cut_off(node, links) => Finding::wrong(
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
            format!("{name} is {} ({heard})", node.state),
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
        judge(&status, nodes, links).iter().map(|finding| (finding.check, finding.state)).collect()
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
        let heard = |name: &str, ms: u64| Node {
            seen_age_ms: Some(ms),
            addresses: vec!["10.0.0.9:6374".into()],
            ..node(name, "silent")
        };
        let all = [node("a", "up"), heard("b", 4000), heard("c", 4000)];
        let status = Status { id: "a".repeat(8), ..Status::default() };
        for links in [vec![], vec![link("c")]] {
            let found = judge(&status, &all, &links);
            let wrong =
                |finding: &&Finding| finding.check == "udp" && finding.state == State::Wrong;
            assert!(found.iter().any(|finding| wrong(&finding)), "{found:?}");
            for finding in &found {
                assert!(!finding.hint.contains("node rm"), "{finding:?}");
                assert!(!finding.hint.contains("recover"), "{finding:?}");
            }
        }
        let gone = [node("a", "up"), node("b", "up"), heard("c", 90_000)];
        let found = judge(&status, &gone, &[link("b")]);
        assert!(found.iter().any(|finding| finding.hint.contains("node rm c")), "{found:?}");
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
    fn a_node_alone_is_well() {
        assert_eq!(states(&[node("a", "up")], &[]), [("members", State::Ok)]);
    }
}
