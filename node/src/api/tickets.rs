//! `/v1/tickets`: what lets machines join, and further parties.
//!
//! The seed of a ticket is made here, goes into the answer and nowhere else; the state learns its public key.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::extract::State;
use axum::http::Uri;
use bytes::Bytes;
use ed25519_dalek::SigningKey;
use mesh_consensus::id::{PartyId, TicketId};
use mesh_consensus::time::Time;
use mesh_transport::ticket::{Kind, Meet, Ticket};
use serde::Deserialize;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::Api;
use super::answer::{
    Answer, Param, Problem, body, date, has_state, item, items, millis, query, quoted, unwritten,
};
use super::find;
use super::route::{Form, Route, field};
use crate::clock;
use crate::handle::{Ask, See};
use crate::state::command::{Act, Invite, TicketNew, TicketRevoke};
use crate::state::ticket::{MAX_TTL, MAX_USES};

/// How long a ticket is good if nobody says: until tomorrow.
const TTL: Duration = Duration::from_secs(24 * 3600);
/// Nodes that a newcomer is told of: any of them lets it in.
const MAX_MEET: usize = 4;
/// Addresses of each.
const MAX_ADDRESSES: usize = 16;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/v1/tickets", "Tickets of this node's party that are still good.", list)
            .query([field(
                "all",
                "boolean",
                "Those of all parties, too, and those used up or expired, until their party makes the next.",
            )])
            .form(Form::Items),
        Route::post("/v1/tickets", "Makes a ticket; the answer holds its text, once.", make).body(
            [
                field(
                    "ttl_ms",
                    "integer",
                    "How long it is good: a day if left out, a hundred years at most.",
                ),
                field("uses", "integer", "How many machines it admits: one if left out."),
                field("worker", "boolean", "Whether they go without the party's signing key."),
                field("new_party", "boolean", "Whether it is for a further party instead."),
                field(
                    "advertise",
                    "array",
                    "Where newcomers find this node: addresses, with a port or not.",
                ),
            ],
        ),
        Route::delete("/v1/tickets/{ticket}", "Makes a ticket worthless.", revoke),
    ]
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WantsList {
    all: bool,
}

/// A ticket or an invite, as the state knows it.
struct Known {
    id: TicketId,
    party: PartyId,
    kind: &'static str,
    /// How many there were at first is not agreed on.
    uses_left: u32,
    expires: Time,
}

impl Known {
    /// What has become of it by `now`. One that was used up in time stays spent.
    fn state(&self, now: Time) -> &'static str {
        match self.uses_left {
            0 => "spent",
            _ if self.expires <= now => "expired",
            _ => "good",
        }
    }
}

/// All that the state holds. What was revoked is gone from it; what is spent or expired stays until its party makes
/// the next.
fn known(see: &See<'_>) -> Vec<Known> {
    let state = see.replica.machine();
    let tickets = state.tickets().iter().map(|(id, ticket)| Known {
        id: *id,
        party: ticket.party,
        kind: if ticket.worker { "worker" } else { "member" },
        uses_left: ticket.uses_left,
        expires: ticket.expires,
    });
    let invites = state.invites().iter().map(|(id, invite)| Known {
        id: *id,
        party: invite.party,
        kind: "new_party",
        uses_left: invite.uses_left,
        expires: invite.expires,
    });
    tickets.chain(invites).collect()
}

async fn list(State(api): State<Api>, uri: Uri) -> Answer {
    let WantsList { all } = query(&uri)?;
    has_state(&api)?;
    let known = api.look(known).await?;
    let roster = api.roster();
    let own = roster.party_of(api.whoami.node);
    // Mesh time stands still while nobody writes; the clock tells what it would be for a newcomer.
    let now = api.pulse().time.max(clock::now());
    let good = |one: &Known| one.state(now) == "good" && Some(one.party) == own;
    let shown = known.iter().filter(|one| all || good(one));
    let row = |one: &Known| -> Value {
        json!({
            "id": one.id,
            "party": roster.parties.get(&one.party).map(|name| name.as_str()),
            "party_id": one.party,
            "kind": one.kind,
            "uses_left": one.uses_left,
            "state": one.state(now),
            "expires_at": date(one.expires),
        })
    };
    Ok(items(&api, shown.map(row).collect()))
}

/// What `POST` takes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Wants {
    ttl_ms: Option<u64>,
    uses: Option<u32>,
    worker: bool,
    new_party: bool,
    advertise: Vec<String>,
}

async fn make(State(api): State<Api>, bytes: Bytes) -> Answer {
    let wants: Wants = body(&bytes)?;
    has_state(&api)?;
    let Terms { ttl, uses, kind, advertise } = terms(wants, data_port(&api))?;
    let meet = meet(&api, advertise)?;
    let own = api.roster().party_of(api.whoami.node);
    let party = own.ok_or_else(Problem::removed)?;
    let expires = api.pulse().time.max(clock::now()).after(ttl);
    let seed = Zeroizing::new(crate::random::<32>());
    let id = TicketId(SigningKey::from_bytes(&seed).verifying_key().to_bytes());
    let act = match kind {
        Kind::NewParty => Act::Invite(Invite { ticket: id, party, expires, uses }),
        Kind::Member | Kind::Worker => {
            let worker = kind == Kind::Worker;
            Act::TicketNew(TicketNew { ticket: id, party, expires, uses, worker })
        }
    };
    let ask = Ask { act, signed: true };
    api.write(vec![ask]).await.map_err(|error| unwritten(&api, error))?;
    let ticket = Ticket { mesh: api.whoami.mesh, party, kind, expires, uses, seed: *seed, meet };
    Ok(item(
        &api,
        json!({
            "id": id,
            "ticket": ticket.to_string(),
            "party": api.roster().parties.get(&party).map(|name| name.as_str()),
            "party_id": party,
            "kind": match kind {
                Kind::Member => "member",
                Kind::Worker => "worker",
                Kind::NewParty => "new_party",
            },
            "expires_at": date(expires),
            "uses": uses,
            "uses_left": uses,
        }),
    ))
}

/// What was asked for, checked.
#[derive(Debug)]
struct Terms {
    ttl: Duration,
    uses: u32,
    kind: Kind,
    advertise: Vec<SocketAddr>,
}

fn terms(wants: Wants, port: u16) -> Result<Terms, Problem> {
    let wrong = |cause: String, hint: &str| Problem::bad("no such ticket can be made", cause, hint);
    let ttl = wants.ttl_ms.map_or(TTL, Duration::from_millis);
    if ttl.is_zero() {
        return Err(wrong("it would be good for no time at all".into(), "ttl_ms of 1 or more"));
    }
    if ttl > MAX_TTL {
        let cause = "it would be good for more than a hundred years";
        let hint = format!("ttl_ms of {} or less", millis(MAX_TTL));
        return Err(wrong(cause.into(), &hint));
    }
    let uses = wants.uses.unwrap_or(1);
    if !(1..=MAX_USES).contains(&uses) {
        return Err(wrong(format!("{uses} uses; 1 to {MAX_USES} can be had"), "another count"));
    }
    let kind = match (wants.worker, wants.new_party) {
        (false, false) => Kind::Member,
        (true, false) => Kind::Worker,
        (false, true) => Kind::NewParty,
        (true, true) => {
            let cause = "the first node of a party holds its key, and a worker does not";
            return Err(wrong(cause.into(), "worker or new_party"));
        }
    };
    if wants.advertise.len() > MAX_ADDRESSES {
        let cause = format!("{} addresses; {MAX_ADDRESSES} fit", wants.advertise.len());
        return Err(wrong(cause, "fewer addresses"));
    }
    let advertise = wants.advertise.iter().map(|text| {
        let bare = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 0));
        let address: SocketAddr = text.parse().or(bare).map_err(|_| {
            wrong(
                format!("{} is no address", quoted(text)),
                "an IP address, with a port or without",
            )
        })?;
        if address.ip().is_unspecified() || address.ip().is_multicast() {
            let cause = format!("nobody can dial {address}");
            return Err(wrong(cause, "an address of this machine as others see it"));
        }
        Ok(if address.port() == 0 { SocketAddr::new(address.ip(), port) } else { address })
    });
    let advertise = advertise.collect::<Result<_, _>>()?;
    Ok(Terms { ttl, uses, kind, advertise })
}

fn data_port(api: &Api) -> u16 {
    api.net.addresses().first().map_or(0, SocketAddr::port)
}

/// Whom a newcomer meets: this node first, then a few that are likely to be there.
fn meet(api: &Api, advertise: Vec<SocketAddr>) -> Result<Vec<Meet>, Problem> {
    let mut here = if advertise.is_empty() { api.hub.here() } else { advertise };
    here.truncate(MAX_ADDRESSES);
    let roster = api.roster();
    let mut others: Vec<_> = api.hub.peers();
    others.retain(|peer| {
        !peer.data.is_empty() && roster.is_member(peer.node) && api.hub.is_alive(peer.node)
    });
    // Those with a seat stay longest.
    others.sort_by_key(|peer| (!roster.seated.contains(&peer.node), peer.node));
    let others = others.into_iter().map(|mut peer| {
        peer.data.truncate(MAX_ADDRESSES);
        Meet { node: peer.node, addresses: peer.data }
    });
    let own = Meet { node: api.whoami.node, addresses: here };
    let meet: Vec<Meet> = std::iter::once(own)
        .chain(others)
        .filter(|one| !one.addresses.is_empty())
        .take(MAX_MEET)
        .collect();
    if meet.is_empty() {
        return Err(Problem::refused(
            "a ticket would lead nowhere",
            "this node has no address that others could dial",
            "mesh ticket new --advertise ADDRESS",
        ));
    }
    Ok(meet)
}

async fn revoke(State(api): State<Api>, Param(wanted): Param<String>) -> Answer {
    has_state(&api)?;
    let found = api.look(move |see| {
        let all = known(see).into_iter().map(|one| (one.id, None));
        find::one("ticket", "mesh ticket ls", &wanted, all)
    });
    let ticket = found.await??;
    let ask = Ask { act: Act::TicketRevoke(TicketRevoke { ticket }), signed: true };
    api.write(vec![ask]).await.map_err(|error| unwritten(&api, error))?;
    Ok(item(&api, json!({ "id": ticket, "revoked": true })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_good_for_a_day_and_one_machine_unless_somebody_says_otherwise() {
        let made = terms(Wants::default(), 6374).unwrap();
        assert_eq!((made.ttl, made.uses, made.kind), (TTL, 1, Kind::Member));
    }

    #[test]
    fn what_becomes_of_a_ticket_is_told_apart() {
        let at = |uses_left, now| {
            let (id, party) = (TicketId([1; 32]), PartyId([2; 32]));
            let one = Known { id, party, kind: "member", uses_left, expires: Time(100) };
            one.state(Time(now))
        };
        assert_eq!([at(1, 99), at(1, 100), at(0, 99)], ["good", "expired", "spent"]);
        assert_eq!(at(0, 100), "spent", "it was used up before it could expire");
    }

    #[test]
    fn the_longest_time_is_taken_in_full_and_has_a_date() {
        let ttl_ms = Some(millis(MAX_TTL));
        assert_eq!(terms(Wants { ttl_ms, ..Wants::default() }, 6374).unwrap().ttl, MAX_TTL);
        let expires = clock::now().after(MAX_TTL);
        assert!(!date(expires).starts_with("9999"), "{}", date(expires));
    }

    #[test]
    fn an_address_without_a_port_gets_the_data_planes() {
        let advertise = vec!["203.0.113.7".to_owned(), "[2001:db8::1]:9".to_owned()];
        let made = terms(Wants { advertise, ..Wants::default() }, 6374).unwrap();
        let texts: Vec<String> = made.advertise.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["203.0.113.7:6374", "[2001:db8::1]:9"]);
    }

    #[test]
    fn a_ticket_that_makes_no_sense_is_refused_with_a_reason() {
        let with = |change: fn(&mut Wants)| {
            let mut wants = Wants::default();
            change(&mut wants);
            terms(wants, 6374)
        };
        assert!(with(|w| w.ttl_ms = Some(0)).is_err());
        assert!(with(|w| w.ttl_ms = Some(u64::MAX)).is_err());
        assert!(with(|w| w.uses = Some(0)).is_err());
        assert!(with(|w| w.uses = Some(MAX_USES + 1)).is_err());
        assert!(with(|w| (w.worker, w.new_party) = (true, true)).is_err());
        for text in ["gpu-1", "0.0.0.0", "", "1.2.3.4:x"] {
            let wants = Wants { advertise: vec![text.into()], ..Wants::default() };
            assert!(terms(wants, 6374).is_err(), "{text}");
        }
        assert!(with(|w| w.advertise = vec!["10.0.0.1".into(); 17]).is_err());
    }
}
