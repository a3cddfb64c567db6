//! Small values that other nodes send: text, ratios, lists and addresses of a bounded size.
//!
//! Each is checked while it is read and before anything is allocated for it, so that a decoded
//! record needs no further check, and no lie about a length costs memory.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest text in a record, in bytes.
pub const MAX_TEXT: usize = 63;
/// The most addresses of one plane.
pub const MAX_ADDRESSES: usize = 16;

/// Printable ASCII of at most [`MAX_TEXT`] bytes.
///
/// Such text ends up in terminals, so it holds no control characters. Pages must still escape it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Text(Box<str>);

impl Text {
    /// What can be said of `text`: cut to size, and `?` for what is not printable ASCII.
    pub fn new(text: &str) -> Self {
        let printable = |c: char| if is_printable(c) { c } else { '?' };
        Self(text.trim().chars().map(printable).take(MAX_TEXT).collect())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_printable(c: char) -> bool {
    matches!(c, ' '..='~')
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <&str>::deserialize(deserializer)?;
        if text.len() > MAX_TEXT || !text.chars().all(is_printable) {
            return Err(D::Error::custom("not a short printable text"));
        }
        Ok(Self(text.into()))
    }
}

/// A share of a whole, in thousandths: no more than one, and never not a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
pub struct Ratio(u16);

impl Ratio {
    const ONE: u16 = 1000;

    /// `share` as nearly as thousandths can say it; outside 0 to 1 it is the nearer of the two.
    pub fn new(share: f64) -> Self {
        // A float cast saturates and turns NaN into 0.
        Self((share.clamp(0.0, 1.0) * f64::from(Self::ONE)).round() as u16)
    }

    /// Between 0 and 1.
    pub fn get(self) -> f64 {
        f64::from(self.0) / f64::from(Self::ONE)
    }
}

impl<'de> Deserialize<'de> for Ratio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u16::deserialize(deserializer)? {
            thousandths @ 0..=Self::ONE => Ok(Self(thousandths)),
            _ => Err(D::Error::custom("more than the whole")),
        }
    }
}

/// Reads a list of at most `N`.
///
/// The items wait on the stack until the list has ended, then get exactly the room they need: what
/// a list costs depends on the items that really came, not on the length it claimed.
pub(super) fn few<'de, D, Item, const N: usize>(deserializer: D) -> Result<Vec<Item>, D::Error>
where
    D: Deserializer<'de>,
    Item: Deserialize<'de>,
{
    deserializer.deserialize_seq(Few::<Item, Item, N>(std::marker::PhantomData))
}

struct Few<Wire, Item, const N: usize>(std::marker::PhantomData<(Wire, Item)>);

impl<'de, Wire, Item, const N: usize> Visitor<'de> for Few<Wire, Item, N>
where
    Wire: Deserialize<'de>,
    Item: From<Wire>,
{
    type Value = Vec<Item>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {N}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<Item>, A::Error> {
        let mut slots: [Option<Item>; N] = std::array::from_fn(|_| None);
        let mut count = 0;
        while let Some(item) = items.next_element::<Wire>()? {
            let slot = slots.get_mut(count).ok_or_else(|| A::Error::custom("a list too long"))?;
            *slot = Some(item.into());
            count += 1;
        }
        let mut list = Vec::with_capacity(count);
        list.extend(slots.into_iter().flatten());
        Ok(list)
    }
}

/// Addresses to dial, at most [`MAX_ADDRESSES`]: each 16 bytes (IPv4 as IPv6-mapped) and a port.
///
/// So an IPv4 address has one encoding, not two, and a list in memory is less than twice its bytes.
pub(super) mod addresses {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        list: &[SocketAddr],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(list.iter().map(|address| Address(*address)))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<SocketAddr>, D::Error> {
        let list = Few::<Address, SocketAddr, MAX_ADDRESSES>(std::marker::PhantomData);
        deserializer.deserialize_seq(list)
    }
}

struct Address(SocketAddr);

impl From<Address> for SocketAddr {
    fn from(address: Address) -> Self {
        address.0
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ip: Ipv6Addr = match self.0.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        (ip.octets(), self.0.port()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (octets, port) = <([u8; 16], u16)>::deserialize(deserializer)?;
        let ip = Ipv6Addr::from(octets);
        let address = match ip.to_ipv4_mapped() {
            Some(ip) => SocketAddr::new(ip.into(), port),
            None => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, 0)),
        };
        if can_be_dialled(address) {
            Ok(Self(address))
        } else {
            Err(D::Error::custom("an address that nobody can dial"))
        }
    }
}

/// Whether `address` names one machine and one port. Loopback does: the nodes of a test share one.
pub(super) fn can_be_dialled(address: SocketAddr) -> bool {
    let ip = address.ip();
    address.port() != 0
        && !ip.is_unspecified()
        && !ip.is_multicast()
        && ip != IpAddr::V4(Ipv4Addr::BROADCAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_and_cleaned_where_it_is_made() {
        assert_eq!(Text::new("  eth0\n").as_str(), "eth0");
        assert_eq!(Text::new("a\u{1b}[2Jé").as_str(), "a?[2J?");
        assert_eq!(Text::new(&"x".repeat(100)).as_str().len(), MAX_TEXT);
    }

    #[test]
    fn a_ratio_is_never_outside_the_whole() {
        assert_eq!(Ratio::new(f64::NAN).get(), 0.0);
        assert_eq!(Ratio::new(-3.0).get(), 0.0);
        assert_eq!(Ratio::new(7.0).get(), 1.0);
        assert_eq!(Ratio::new(0.1234).get(), 0.123);
    }
}
