//! Why a command changed nothing.
//!
//! Every node must give the same answer to the same command, and the answer travels as a number
//! ([`mesh_consensus::machine::Outcome::Refused`]). So the numbers are for ever: a new reason takes
//! the next one, and a reason that is no longer given keeps its own.

macro_rules! refusals {
    ($($code:literal $name:ident $message:literal;)*) => {
        /// Why a command changed nothing. The numbers never change.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
        #[repr(u16)]
        pub enum Refusal {
            $(
                #[doc = concat!("Says: ", $message, ".")]
                #[error($message)]
                $name = $code,
            )*
        }

        impl Refusal {
            /// All reasons, by number.
            pub const ALL: &'static [Refusal] = &[$(Refusal::$name,)*];
        }
    };
}

refusals! {
    // What any command can meet.
    1 UnknownKind "the mesh knows no such kind of command at its level";
    2 Malformed "the command's body is not the encoding of its kind";
    3 NotMember "the author is not a member, or is leaving";
    4 Unsigned "this needs the signature of a party";
    5 BadPartySignature "the party did not sign this command at this place";
    6 NoSuchParty "there is no such party";
    7 WrongParty "this belongs to another party";
    8 BadExpiry "the expiry is not after the mesh's time";
    9 BadKey "the key is not a usable Ed25519 public key";

    // Tickets and admission.
    10 TicketTaken "a ticket with this key exists";
    11 NoSuchTicket "there is no such ticket: it was never made, was revoked, or has been cleared away";
    12 TicketExpired "the ticket has expired";
    13 TicketUsedUp "the ticket has been used up";
    14 BadProof "the ticket's key did not sign for this node in this mesh";
    15 BadUses "a ticket can be used once or more, up to ten thousand times";
    16 TooManyTickets "the party has as many live tickets as it may have";
    17 AlreadyMember "the node is a member already";
    18 Removed "the node was a member once; its key may not come back";
    19 NameTaken "the name is taken";
    20 OneAdmissionPerEntry "another node was admitted by the same entry: try again";
    21 TooManyMembers "the party has as many nodes as it may have";

    // Members.
    22 NoSuchMember "the node is not a member, or is leaving";
    23 NotYours "only the node itself or its party may do this";
    24 LastMember "nobody would remain who can vote";
    25 AboutItself "a node has no say on whether it is down";

    // Requests that need a majority of the parties.
    26 NoSuchRequest "there is no such request: it was never made, was decided, or has been cleared away";
    27 RequestExpired "the request has expired";
    28 AlreadySigned "the party has given its answer to this request";
    29 TooManyRequests "the party has as many open requests as it may have";
    30 PartyTaken "there is a party with this key";
    31 TooManyParties "the mesh has as many parties as it may have";
    32 NameReserved "the name has a meaning of its own";

    // Levels.
    33 NotNextLevel "a level is raised by one at a time";
    34 NotAllSupport "not every member has reported that it supports the level";
    35 WrongLevel "the level is not as described: its kinds or its version differ";

    // Names.
    36 NameChanged "the name does not stand for what was expected";
    37 TooManyNames "the party has as many names as it may have";

    // Admission, once more.
    38 BadConsent "the node's key did not agree to this ticket and its party in this mesh";

    // Raft's tick.
    39 NotVoter "only a node that votes may do this";
    40 BadTick "a tick lasts 20 to 2000 milliseconds";

    // Labels.
    41 TooManyLabels "the node has as many labels as it may have";

    // Invites.
    42 NotInvited "the invite's key did not sign for this party in this mesh";
    43 NotWilling "the new party's key did not agree to be founded so in this mesh";
    44 AlreadyAsked "the same request is open already: it waits for the other parties";

    // Hand-overs.
    45 NoSuchHandover "there is no such change of voters, or enough have signed it";
    46 BadHandover "the author did not vote before this change, or did not sign it";

    // Data.
    47 VersionTaken "a version with this id exists";
    48 NoSuchVersion "there is no such version: it was never made, or was dropped";
    49 NumberTaken "the number was given already, or is none";
    50 SealedChanged "the party's sealed records are not as expected: another node changed them";
    51 BodyChanged "the version is not as expected: another node changed it";
    52 PlaceChanged "a version keeps its name and its number";
    53 TagChanged "the tag does not stand for what was expected";
    54 BadCopies "a version wants 1 to 16 copies and begins with 1 to 16, and a mere record has none";
    55 BadReaders "a version is shared with everyone, or with 1 to 64 other parties of the mesh";
    56 MayNotHold "the node may not hold this version";
    57 TooManyHolders "the version has as many holders as it may have";
    58 StillNeeded "too few other copies would remain";
    59 LastCopy "no copy would remain where one may be held";
    60 TooManyVersions "the party has as many versions as it may have";
    61 TooMuchData "the party has as much in the state as it may have";

    // Parties that are not there.
    62 PartyAbsent "the party has no node in the mesh, and so no say";

    // Jobs.
    63 JobTaken "a job with this id exists";
    64 NoSuchJob "there is no such job: it was never submitted, or was dropped";
    65 BadJob "the job's description has a flaw";
    66 JobLives "the job is not over";
    67 TooManyJobs "the party has as many jobs in the state as it may have";
    68 StalePlan "the plan was made from an older state";
    69 BadPlan "the plan is not one";
    70 Fenced "the attempt does not count any more: the task was given elsewhere, or has ended";
    71 StaleNews "the attempt is further already";
    72 BadProduct "the job makes no such version";

    // The course of a training.
    73 NoCourse "the job trains nothing, or its training is over";
    74 NotAggregator "the author's party may not sum this job's updates";
    75 BadLease "a lease lasts 1 to 60000 milliseconds";
    76 LeaseTaken "another node coordinates this training";
    77 StaleEpoch "the author does not coordinate this training, or no longer does";
    78 BadRound "the round is not one that can come next";
    79 CountedTwice "an update counts once, and none before the last one that was counted";
    80 BadCharge "the round is not open, spends no budget, or such tasks are not there";
    81 TooManyBudgets "as many budgets are kept as there may be";
    82 BadVerdict "the training cannot end so";

    // Parameter servers.
    83 TooEarly "not every member supports such a job yet";
    84 BadShard "there is no such shard, or these nodes cannot have it";
    85 StaleShard "the shard has another primary or backup by now";

    // Shares of parties.
    86 BadShare "a party's weight is from 1 to 1000";
}

impl Refusal {
    /// Its number, for [`mesh_consensus::machine::Outcome::Refused`].
    pub fn code(self) -> u16 {
        self as u16
    }

    /// The reason with this number; `None` if a later version gave it.
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|refusal| refusal.code() == code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_found_by_its_number_and_no_number_has_two() {
        for (place, refusal) in Refusal::ALL.iter().enumerate() {
            assert_eq!(usize::from(refusal.code()), place + 1, "{refusal:?}");
            assert_eq!(Refusal::from_code(refusal.code()), Some(*refusal));
        }
        assert_eq!(Refusal::from_code(0), None);
        assert_eq!(Refusal::from_code(u16::MAX), None);
    }

    #[test]
    fn the_numbers_that_others_rely_on_stay() {
        assert_eq!(Refusal::UnknownKind.code(), 1);
        assert_eq!(Refusal::TicketUsedUp.code(), 13);
        assert_eq!(Refusal::LastMember.code(), 24);
        assert_eq!(Refusal::NotAllSupport.code(), 34);
        assert_eq!(Refusal::TooManyNames.code(), 37);
        assert_eq!(Refusal::BadConsent.code(), 38);
        assert_eq!(Refusal::AlreadyAsked.code(), 44);
        assert_eq!(Refusal::NumberTaken.code(), 49);
        assert_eq!(Refusal::TooMuchData.code(), 61);
        assert_eq!(Refusal::PartyAbsent.code(), 62);
        assert_eq!(Refusal::Fenced.code(), 70);
        assert_eq!(Refusal::StaleEpoch.code(), 77);
    }
}
