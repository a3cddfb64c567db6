//! The network interfaces of this machine, and which of its addresses others may dial.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use super::bounded::{MAX_ADDRESSES, Text};
use super::record::{Interface, MAX_INTERFACES};
use super::resources::read;

/// The addresses under which others may reach sockets bound to `bound`, best first.
///
/// A socket bound to one address is reached there. One bound to all is reached at every address of
/// its family, except those that mean something else on another machine: loopback, link-local IPv6
/// and the bridges of containers. Only where nothing else is left are these better than nothing.
///
/// `bound` must hold both families for both to be found: whether a socket bound to `[::]` also
/// takes IPv4 is not visible from here.
pub fn addresses(bound: &[SocketAddr]) -> Vec<SocketAddr> {
    dialable(bound, &own())
}

/// The interfaces that are up, without loopback and containers' own.
pub(super) fn interfaces() -> Vec<Interface> {
    let own = own();
    let names: BTreeSet<&str> =
        own.iter().filter(|own| rank(own) == Rank::Plain).map(|own| own.name.as_str()).collect();
    let interface = |name: &str| {
        let speed = read(&Path::new("/sys/class/net").join(name).join("speed"));
        // -1 means that the kernel does not know.
        let speed_mbps = speed.and_then(|speed| speed.trim().parse().ok()).unwrap_or(0);
        Interface { name: Text::new(name), speed_mbps }
    };
    names.into_iter().take(MAX_INTERFACES).map(interface).collect()
}

/// One address of one interface that is up.
#[derive(Debug, Clone)]
struct Own {
    name: String,
    ip: IpAddr,
}

fn own() -> Vec<Own> {
    let all = if_addrs::get_if_addrs().unwrap_or_default();
    let up = all.into_iter().filter(if_addrs::Interface::is_oper_up);
    up.map(|i| Own { ip: i.ip(), name: i.name }).collect()
}

/// How likely it is that others reach an address. Better ones are less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Plain,
    Container,
    Loopback,
    /// Means nothing without the name of an interface, and that differs from machine to machine.
    LinkLocal,
}

fn rank(own: &Own) -> Rank {
    match own.ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Rank::LinkLocal,
        ip if ip.is_loopback() => Rank::Loopback,
        _ if is_containers(&own.name) => Rank::Container,
        _ => Rank::Plain,
    }
}

/// Whether an interface leads to containers or virtual machines on this machine only.
fn is_containers(name: &str) -> bool {
    const PREFIXES: [&str; 9] =
        ["docker", "veth", "cni", "virbr", "podman", "lxc", "flannel", "cali", "kube-"];
    // Docker's networks; a bridge that a person made is called something like `br-lan`.
    let is_docker_network =
        |rest: &str| rest.len() == 12 && rest.bytes().all(|b| b.is_ascii_hexdigit());
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || name.strip_prefix("br-").is_some_and(is_docker_network)
}

fn dialable(bound: &[SocketAddr], own: &[Own]) -> Vec<SocketAddr> {
    let mut found: Vec<(Rank, SocketAddr)> = Vec::new();
    for bound in bound {
        if bound.ip().is_unspecified() {
            let family = own.iter().filter(|own| own.ip.is_ipv4() == bound.is_ipv4());
            found.extend(family.map(|own| (rank(own), SocketAddr::new(own.ip, bound.port()))));
        } else {
            // Chosen by a person: a container's bridge is then what they meant.
            let chosen = Own { name: String::new(), ip: bound.ip() };
            found.push((rank(&chosen), SocketAddr::new(bound.ip(), bound.port())));
        }
    }
    let Some(best) = found.iter().map(|(rank, _)| *rank).min() else { return Vec::new() };
    if best == Rank::LinkLocal {
        return Vec::new();
    }
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for (rank, address) in found {
        if rank == best && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses.truncate(MAX_ADDRESSES);
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(list: &[(&str, &str)]) -> Vec<Own> {
        let own = |(name, ip): &(&str, &str)| Own { name: (*name).into(), ip: ip.parse().unwrap() };
        list.iter().map(own).collect()
    }

    fn usual() -> Vec<Own> {
        own(&[
            ("lo", "127.0.0.1"),
            ("lo", "::1"),
            ("docker0", "172.17.0.1"),
            ("br-0123456789ab", "172.18.0.1"),
            ("eth0", "192.0.2.7"),
            ("eth0", "2001:db8::7"),
            ("eth0", "fe80::7"),
            ("br-lan", "10.0.0.1"),
        ])
    }

    fn texts(bound: &[&str], own: &[Own]) -> Vec<String> {
        let bound: Vec<SocketAddr> = bound.iter().map(|text| text.parse().unwrap()).collect();
        dialable(&bound, own).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn all_that_others_can_reach_and_nothing_else() {
        assert_eq!(
            texts(&["0.0.0.0:6374", "[::]:6374"], &usual()),
            ["192.0.2.7:6374", "10.0.0.1:6374", "[2001:db8::7]:6374"]
        );
        assert_eq!(texts(&["[::]:1"], &usual()), ["[2001:db8::7]:1"]);
    }

    #[test]
    fn an_address_that_was_asked_for_is_the_one() {
        assert_eq!(texts(&["192.0.2.7:5"], &usual()), ["192.0.2.7:5"]);
        assert_eq!(texts(&["172.17.0.1:5"], &usual()), ["172.17.0.1:5"]);
        assert_eq!(texts(&["127.0.0.1:5", "[::1]:5"], &usual()), ["127.0.0.1:5", "[::1]:5"]);
        assert_eq!(texts(&["127.0.0.1:5", "192.0.2.7:5"], &usual()), ["192.0.2.7:5"]);
    }

    #[test]
    fn with_nothing_better_a_bridge_or_loopback_will_do() {
        let inside = own(&[("lo", "127.0.0.1"), ("veth3", "10.9.0.3"), ("veth3", "fe80::3")]);
        assert_eq!(texts(&["0.0.0.0:1", "[::]:1"], &inside), ["10.9.0.3:1"]);
        let alone = own(&[("lo", "127.0.0.1")]);
        assert_eq!(texts(&["0.0.0.0:1", "[::]:1"], &alone), ["127.0.0.1:1"]);
        assert!(texts(&["[::]:1"], &own(&[("eth0", "fe80::7")])).is_empty());
        assert!(texts(&[], &usual()).is_empty());
    }

    #[test]
    fn this_machine_has_no_interface_of_a_container_to_show() {
        assert!(
            interfaces().iter().all(|i| i.name.as_str() != "lo" && i.name.as_str() != "docker0")
        );
    }
}
