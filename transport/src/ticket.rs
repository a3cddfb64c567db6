//! What a newcomer is handed: `mesh1-<terms>-<secret>-<where>`.
//!
//! Three parts in base32, each with a checksum of its own, so that a mistyped ticket says *which* part
//! is wrong. The secret is a one-off seed; the state keeps only its public key, and `node` decides
//! what a ticket is good for. A ticket comes from a person and is not trusted: every length in it is
//! bounded.

use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::str::FromStr;

use data_encoding::BASE32_NOPAD;
use ed25519_dalek::SigningKey;
use mesh_consensus::command::exact;
use mesh_consensus::id::{MeshId, NodeId, PartyId, TicketId};
use mesh_consensus::time::Time;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Nodes to meet that a ticket may name.
pub const MAX_MEET: usize = FEW;
/// Addresses of each of them.
pub const MAX_ADDRESSES: usize = FEW;
/// A ticket with every node and address that is allowed is shorter than this.
pub const MAX_TEXT: usize = 16 << 10;

const PREFIX: &str = "mesh1";
const FEW: usize = 16;

/// What the holder becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A node of the party, with its key.
    Member,
    /// A node of the party, without its signing key.
    Worker,
    /// The first node of a party of its own.
    NewParty,
}

/// A node to show the ticket to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meet {
    /// Whose key must answer.
    pub node: NodeId,
    /// Where its data plane listens.
    #[serde(deserialize_with = "few")]
    pub addresses: Vec<SocketAddr>,
}

/// A ticket. Whoever holds the text may join.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    /// Into which mesh.
    pub mesh: MeshId,
    /// Whose node the newcomer becomes, or who invites a new party.
    pub party: PartyId,
    /// As what.
    pub kind: Kind,
    /// Until when, in mesh time.
    pub expires: Time,
    /// For how many newcomers.
    pub uses: u32,
    /// The one-off secret.
    pub seed: [u8; 32],
    /// Whom to show it to.
    pub meet: Vec<Meet>,
}

/// Why a text is not a ticket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TicketError {
    /// Not even its beginning.
    #[error("not a ticket: a ticket begins with {PREFIX}-")]
    NotATicket,
    /// Of a later version of mesh.
    #[error("a ticket of a newer mesh ({found}); this one reads {PREFIX}")]
    Version {
        /// As it begins.
        found: String,
    },
    /// Too few or too many parts.
    #[error("a ticket has three parts after {PREFIX}, this one has {found}: was it cut off?")]
    Parts {
        /// How many.
        found: usize,
    },
    /// A part whose checksum is wrong.
    #[error("the {}, is mistyped", .0.called())]
    Mistyped(Part),
    /// A part that was typed as it was made, and still makes no sense.
    #[error("the {}, is not of a ticket that this version can read", .0.called())]
    Malformed(Part),
    /// More than a ticket can be.
    #[error("{0} characters are too long for a ticket")]
    TooLong(usize),
}

/// A part of a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Mesh, party, kind, expiry, uses.
    Terms,
    /// The seed.
    Secret,
    /// The nodes to meet.
    Where,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Terms => "terms",
            Part::Secret => "secret",
            Part::Where => "where",
        }
    }

    fn called(self) -> &'static str {
        match self {
            Part::Terms => "first part, the terms",
            Part::Secret => "second part, the secret",
            Part::Where => "third part, the addresses",
        }
    }

    fn checksum(self, bytes: &[u8]) -> [u8; 2] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.name().as_bytes());
        hasher.update(bytes);
        let hash = hasher.finalize();
        [hash.as_bytes()[0], hash.as_bytes()[1]]
    }

    fn write(self, mut bytes: Vec<u8>) -> String {
        bytes.extend(self.checksum(&bytes));
        let mut text = BASE32_NOPAD.encode(&bytes);
        text.make_ascii_lowercase();
        text
    }

    fn read(self, text: &str) -> Result<Vec<u8>, TicketError> {
        let mistyped = TicketError::Mistyped(self);
        let text = text.to_ascii_uppercase();
        let mut bytes = BASE32_NOPAD.decode(text.as_bytes()).map_err(|_| mistyped.clone())?;
        let body = bytes.len().checked_sub(2).ok_or(mistyped.clone())?;
        let checksum = bytes.split_off(body);
        if checksum == self.checksum(&bytes) { Ok(bytes) } else { Err(mistyped) }
    }
}

#[derive(Serialize, Deserialize)]
struct Terms {
    mesh: MeshId,
    party: PartyId,
    kind: Kind,
    expires: Time,
    uses: u32,
}

impl Ticket {
    /// What the state calls it.
    pub fn id(&self) -> TicketId {
        TicketId(self.signing().verifying_key().to_bytes())
    }

    /// What the newcomer signs with.
    pub fn signing(&self) -> SigningKey {
        SigningKey::from_bytes(&self.seed)
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mesh, party, kind, expires, uses, seed, meet } = self;
        let terms =
            Terms { mesh: *mesh, party: *party, kind: *kind, expires: *expires, uses: *uses };
        let terms = postcard::to_stdvec(&terms).map_err(|_| fmt::Error)?;
        // Only what can be read back is written.
        let meet: Vec<Meet> = meet
            .iter()
            .take(MAX_MEET)
            .map(|Meet { node, addresses }| Meet {
                node: *node,
                addresses: addresses.iter().take(MAX_ADDRESSES).copied().collect(),
            })
            .collect();
        let meet = postcard::to_stdvec(&Places(meet)).map_err(|_| fmt::Error)?;
        let terms = Part::Terms.write(terms);
        let secret = Part::Secret.write(seed.to_vec());
        let places = Part::Where.write(meet);
        write!(f, "{PREFIX}-{terms}-{secret}-{places}")
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        let text = text.trim();
        if text.len() > MAX_TEXT {
            return Err(TicketError::TooLong(text.len()));
        }
        let (prefix, rest) = text.split_once('-').ok_or(TicketError::NotATicket)?;
        if !prefix.eq_ignore_ascii_case(PREFIX) {
            let digits = prefix.to_ascii_lowercase();
            return Err(match digits.strip_prefix("mesh").map(str::parse::<u16>) {
                Some(Ok(_)) => TicketError::Version { found: digits },
                _ => TicketError::NotATicket,
            });
        }
        let parts: Vec<&str> = rest.split('-').take(5).collect();
        let [terms, secret, places] = parts[..] else {
            return Err(TicketError::Parts { found: parts.len() });
        };
        let terms = Part::Terms.read(terms)?;
        let secret = Part::Secret.read(secret)?;
        let places = Part::Where.read(places)?;
        let Terms { mesh, party, kind, expires, uses } =
            exact(&terms).ok_or(TicketError::Malformed(Part::Terms))?;
        let seed = secret.try_into().map_err(|_| TicketError::Malformed(Part::Secret))?;
        let Places(meet) = exact(&places).ok_or(TicketError::Malformed(Part::Where))?;
        Ok(Self { mesh, party, kind, expires, uses, seed, meet })
    }
}

#[derive(Serialize, Deserialize)]
struct Places(#[serde(deserialize_with = "few")] Vec<Meet>);

/// Reads a short list, and reserves nothing on its word.
fn few<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    struct Few<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Few<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {FEW} elements")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut elements = Vec::new();
            while let Some(element) = list.next_element()? {
                if elements.len() == FEW {
                    return Err(A::Error::invalid_length(FEW + 1, &self));
                }
                elements.push(element);
            }
            Ok(elements)
        }
    }
    from.deserialize_seq(Few(PhantomData))
}

/// Never shows the seed.
impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("id", &self.id())
            .field("mesh", &self.mesh)
            .field("party", &self.party)
            .field("kind", &self.kind)
            .field("expires", &self.expires)
            .field("uses", &self.uses)
            .field("meet", &self.meet)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket() -> Ticket {
        Ticket {
            mesh: MeshId([1; 32]),
            party: PartyId([2; 32]),
            kind: Kind::Worker,
            expires: Time(1_800_000_000_000),
            uses: 3,
            seed: [77; 32],
            meet: vec![Meet {
                node: NodeId([4; 32]),
                addresses: vec![
                    "10.0.0.1:6374".parse().unwrap(),
                    "[fd00::1]:6374".parse().unwrap(),
                ],
            }],
        }
    }

    #[test]
    fn a_ticket_reads_back_what_it_prints_however_it_was_copied() {
        let text = ticket().to_string();
        assert_eq!(text.parse(), Ok(ticket()));
        assert_eq!(format!("  {}\n", text.to_uppercase()).parse(), Ok(ticket()));
        assert_eq!(text, text.to_lowercase());
        assert_eq!(text.split('-').count(), 4);
    }

    #[test]
    fn a_mistyped_character_is_found_in_its_part() {
        let text = ticket().to_string();
        let starts: Vec<usize> = text.match_indices('-').map(|(at, _)| at).collect();
        let parts = [Part::Terms, Part::Secret, Part::Where];
        for (start, part) in starts.into_iter().zip(parts) {
            let mut typed: Vec<char> = text.chars().collect();
            let at = start + 5;
            typed[at] = if typed[at] == 'a' { 'b' } else { 'a' };
            let typed: String = typed.into_iter().collect();
            assert_eq!(typed.parse::<Ticket>(), Err(TicketError::Mistyped(part)));
        }
        let error = TicketError::Mistyped(Part::Secret);
        assert_eq!(error.to_string(), "the second part, the secret, is mistyped");
    }

    #[test]
    fn what_is_no_ticket_says_so() {
        assert_eq!("".parse::<Ticket>(), Err(TicketError::NotATicket));
        assert_eq!("hello-a-b-c".parse::<Ticket>(), Err(TicketError::NotATicket));
        let found = "mesh2".to_string();
        assert_eq!("mesh2-a-b-c".parse::<Ticket>(), Err(TicketError::Version { found }));
        assert_eq!("mesh1-a-b".parse::<Ticket>(), Err(TicketError::Parts { found: 2 }));
        assert!("mesh1-ä-b-c".parse::<Ticket>().is_err());
        let long = "a".repeat(MAX_TEXT + 1);
        assert_eq!(long.parse::<Ticket>(), Err(TicketError::TooLong(long.len())));
    }

    #[test]
    fn the_largest_ticket_fits_and_a_larger_one_is_cut() {
        let address: SocketAddr =
            "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535".parse().unwrap();
        let meet = Meet { node: NodeId([255; 32]), addresses: vec![address; MAX_ADDRESSES + 1] };
        let mut big = Ticket { meet: vec![meet; MAX_MEET + 1], ..ticket() };
        let text = big.to_string();
        assert!(text.len() < MAX_TEXT, "{}", text.len());
        big.meet.truncate(MAX_MEET);
        big.meet.iter_mut().for_each(|meet| meet.addresses.truncate(MAX_ADDRESSES));
        assert_eq!(text.parse(), Ok(big));
    }

    #[test]
    fn a_list_that_is_too_long_is_refused_whatever_its_checksum() {
        let text = ticket().to_string();
        let (front, _) = text.rsplit_once('-').unwrap();
        // A list of 2^28 - 1 nodes, and one of 17 that are really there.
        let meet = Meet { node: NodeId([0; 32]), addresses: vec![] };
        let many = postcard::to_stdvec(&vec![meet; FEW + 1]).unwrap();
        for places in [vec![0xff, 0xff, 0xff, 0x7f], many] {
            let text = format!("{front}-{}", Part::Where.write(places));
            assert_eq!(text.parse::<Ticket>(), Err(TicketError::Malformed(Part::Where)));
        }
    }

    #[test]
    fn printing_a_ticket_for_a_log_does_not_show_the_secret() {
        let shown = format!("{:?}", ticket());
        assert!(!shown.contains("77"), "{shown}");
        assert!(shown.contains(&ticket().id().short()));
    }
}
