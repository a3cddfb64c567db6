//! How a message travels: one gossipsub topic per mesh.
//!
//! At gossipsub's own level messages are anonymous: its strict mode checks a signature while decoding,
//! before duplicates are dropped, once per peer that sends a copy. Ours is checked by the judge, once. A message
//! is named by the BLAKE3 of its bytes, so that two copies are one message whoever sends them.
//!
//! Nothing is passed on before it is judged. A bad message counts against those who sent it: after nine in a
//! short time a peer is not listened to, good or bad, until enough of them are forgotten. A liar
//! can thus have one message judged every ten seconds or so, and the others lose nothing by it.

use std::time::Duration;

use libp2p::PeerId;
use libp2p::gossipsub::{
    Behaviour, ConfigBuilder, IdentTopic, IdentityTransform, MaxCountSubscriptionFilter, Message,
    MessageAcceptance, MessageAuthenticity, MessageId, PeerScoreParams, PeerScoreThresholds,
    PublishError, TopicHash, TopicScoreParams, ValidationMode, WhitelistSubscriptionFilter,
};
use mesh_consensus::id::MeshId;
use tracing::{debug, trace};

use super::{Heard, Judge, Judged, MAX_GOSSIP, OverlayError, setup};

/// A message as gossipsub sees it: ours, and the topic's name with a few bytes of protobuf around it.
const MAX_MESSAGE: usize = 2 * MAX_GOSSIP;
/// What may stand in one connection's read buffer. Not smaller: gossipsub 0.50 compares this with all that it
/// has read so far (8 KiB at a time), not with one message, and closes the stream on a burst.
const MAX_BUFFERED: usize = 64 * 1024;
/// Messages that may wait for one slow peer (gossipsub's default of 5000 is too many to pin); then they are dropped.
const PEER_QUEUE: usize = 256;
/// How often the topic's tree is looked after.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// Messages in one frame. We send one; others may send a few.
const FRAME_MESSAGES: usize = 64;
/// Topics a peer may name at once: there is one that counts, and a little room for later versions.
const MAX_TOPICS: usize = 8;

/// gossipsub, with ears for one topic.
pub(super) type Gossip =
    Behaviour<IdentityTransform, MaxCountSubscriptionFilter<WhitelistSubscriptionFilter>>;

/// The topic of `mesh`.
fn topic(mesh: MeshId) -> IdentTopic {
    IdentTopic::new(format!("mesh/1/{mesh}"))
}

/// Sets gossipsub up and subscribes to the topic of `mesh`.
pub(super) fn behaviour(mesh: MeshId) -> Result<Gossip, OverlayError> {
    let topic = topic(mesh);
    let config = ConfigBuilder::default()
        .validation_mode(ValidationMode::Anonymous)
        .validate_messages()
        .message_id_fn(|message: &Message| {
            MessageId::from(blake3::hash(&message.data).as_bytes().to_vec())
        })
        // To the peers of the topic's tree only: eight copies instead of one per connection.
        .flood_publish(false)
        // Every beat, each peer tells some others what it has: at one beat a second that was a third of the cost
        // of an idle node. Messages travel at once all the same; only what got lost waits for a beat.
        .heartbeat_interval(HEARTBEAT)
        .max_transmit_size(MAX_BUFFERED)
        .max_transmit_size_for_topic(MAX_MESSAGE, topic.hash())
        .max_publish_messages(FRAME_MESSAGES)
        .connection_handler_queue_len(PEER_QUEUE)
        .build()
        .map_err(setup)?;
    let filter = MaxCountSubscriptionFilter {
        filter: WhitelistSubscriptionFilter([topic.hash()].into_iter().collect()),
        max_subscribed_topics: MAX_TOPICS,
        max_subscriptions_per_request: MAX_TOPICS,
    };
    let mut gossip =
        Behaviour::new_with_subscription_filter(MessageAuthenticity::Anonymous, config, filter)
            .map_err(setup)?;
    gossip.with_peer_score(score(topic.hash()), thresholds()).map_err(setup)?;
    gossip.subscribe(&topic).map_err(setup)?;
    Ok(gossip)
}

/// Only bad messages cost anything worth speaking of. Being slow, new, quiet, or one of fifty on a host is
/// normal in a training fleet.
fn score(topic: TopicHash) -> PeerScoreParams {
    let per_topic = TopicScoreParams {
        topic_weight: 1.0,
        time_in_mesh_weight: 0.0,
        first_message_deliveries_weight: 0.0,
        mesh_message_deliveries_weight: 0.0,
        mesh_failure_penalty_weight: 0.0,
        // Squared: nine reach the threshold of 80. Their number halves in about a minute.
        invalid_message_deliveries_weight: -1.0,
        invalid_message_deliveries_decay: 0.9,
        ..TopicScoreParams::default()
    };
    PeerScoreParams {
        topics: [(topic, per_topic)].into_iter().collect(),
        app_specific_weight: 0.0,
        ip_colocation_factor_weight: 0.0,
        slow_peer_weight: 0.0,
        // An answer that a busy host owes and does not give counts as misbehaviour here: allow for some.
        behaviour_penalty_weight: -1.0,
        behaviour_penalty_threshold: 10.0,
        behaviour_penalty_decay: 0.9,
        decay_interval: Duration::from_secs(10),
        ..PeerScoreParams::default()
    }
}

fn thresholds() -> PeerScoreThresholds {
    // With no way to earn a good score, nobody is ever below a median of zero without having lied.
    PeerScoreThresholds { opportunistic_graft_threshold: 0.0, ..PeerScoreThresholds::default() }
}

/// Publishes `bytes` on the topic of `mesh`.
pub(super) fn publish(gossip: &mut Gossip, mesh: MeshId, bytes: Vec<u8>) {
    match gossip.publish(topic(mesh), bytes) {
        Ok(id) => trace!(%id, "published"),
        Err(PublishError::NoPeersSubscribedToTopic) => trace!("published to nobody"),
        Err(error) => debug!(%error, "a message was not published"),
    }
}

/// Judges a message that came from `peer`, and passes it on or not. Returns what is to be delivered.
pub(super) fn judge(
    gossip: &mut Gossip,
    judge: &Judge,
    id: &MessageId,
    peer: &PeerId,
    message: Message,
) -> Option<Heard> {
    let judged = if message.data.len() > MAX_GOSSIP { Judged::Bad } else { judge(&message.data) };
    trace!(%id, %peer, ?judged, "heard");
    let acceptance = match judged {
        Judged::Good => MessageAcceptance::Accept,
        Judged::Stale => MessageAcceptance::Ignore,
        Judged::Bad => MessageAcceptance::Reject,
    };
    gossip.report_message_validation_result(id, peer, acceptance);
    (judged == Judged::Good).then_some(Heard { bytes: message.data })
}
