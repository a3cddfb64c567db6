//! Which entries stand in the table "recent", and when they move on.
//!
//! The entries of a log are those of "entries", followed by those of "recent".

use redb::{ReadableTable as _, StorageError, Table, TableError, WriteTransaction};

use super::{ENTRIES, HEAD};

/// How much of "recent" may be entries. A page has 4096 bytes; the head and redb's own notes need
/// the rest.
const ROOM: u64 = 3600;
/// What redb needs for a record besides its value: the key, and where the value ends.
const PER_RECORD: u64 = 12;

type Entries<'txn> = Table<'txn, u64, &'static [u8]>;

/// What stands in "recent" besides the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Recent {
    /// The first entry that stands there, or would: all before it are in "entries".
    first: u64,
    /// The room that those which stand there take up. After a truncation it may be less than said.
    bytes: u64,
}

impl Recent {
    /// Nothing, in a log that ends at `last`.
    pub(super) fn after(last: u64) -> Self {
        Self { first: last + 1, bytes: 0 }
    }

    /// Counts an entry that was found there.
    pub(super) fn found(&mut self, value: &[u8]) {
        self.bytes += PER_RECORD + value.len() as u64;
    }

    /// Appends `new`, after dropping what stands at `index` and above. If there is no room, all of
    /// "recent" moves to "entries" first, and `new` goes there too.
    pub(super) fn replace(
        &mut self,
        txn: &WriteTransaction,
        table: &mut Entries<'_>,
        index: u64,
        new: &[(u64, Vec<u8>)],
    ) -> Result<(), TableError> {
        if index < self.first {
            txn.open_table(ENTRIES)?.retain_in(index.., |_, _| false)?;
            *self = Self::after(index - 1);
        }
        table.retain_in(index..HEAD, |_, _| false)?;
        let mut after = *self;
        new.iter().for_each(|(_, value)| after.found(value));
        if after.bytes <= ROOM {
            for (index, value) in new {
                table.insert(index, &**value)?;
            }
            *self = after;
            return Ok(());
        }
        let mut entries = txn.open_table(ENTRIES)?;
        for item in table.range(..HEAD)? {
            let (index, value) = item?;
            entries.insert(index.value(), value.value())?;
        }
        table.retain_in(..HEAD, |_, _| false)?;
        for (index, value) in new {
            entries.insert(index, &**value)?;
        }
        let last = new.last().map_or(index - 1, |(index, _)| *index);
        *self = Self::after(last);
        Ok(())
    }

    /// Drops what stands before `index`.
    pub(super) fn forget(
        &mut self,
        table: &mut Entries<'_>,
        index: u64,
    ) -> Result<(), StorageError> {
        if index > self.first {
            table.retain_in(..index, |_, _| false)?;
            self.first = index;
        }
        Ok(())
    }
}
