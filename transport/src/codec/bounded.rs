//! A deserializer that takes no more memory than its input can justify.
//!
//! A format such as bincode says of a list how long it is, and `Vec` believes it: twelve bytes can
//! ask for gigabytes. This wraps any deserializer, looks on while lists grow, and refuses the value
//! once they would need more than a fixed multiple of the input. It does so without reserving first:
//! an announced length counts only as far as the input could hold it.

use std::cell::Cell;
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};

/// What a list may take in memory for each byte of input.
const FACTOR: usize = 4;
/// And what a value may take whatever its size: the first few elements of a `Vec` come together.
const SLACK: usize = 4 << 10;
/// A list reserves room in advance as if each of its elements took so many bytes of input.
const RESERVE: usize = 32;

/// What is left to spend on one value.
pub(super) struct Budget {
    left: Cell<usize>,
    input: usize,
}

impl Budget {
    pub(super) fn of(input: &[u8]) -> Self {
        let input = input.len();
        Self { left: Cell::new(input.saturating_mul(FACTOR).saturating_add(SLACK)), input }
    }

    fn spend<E: Error>(&self, bytes: usize) -> Result<(), E> {
        let left = self.left.get().checked_sub(bytes);
        self.left.set(left.ok_or_else(|| E::custom("more in memory than its bytes justify"))?);
        Ok(())
    }

    /// A list of more elements than there are bytes is a lie.
    fn length<E: Error>(&self, announced: Option<usize>) -> Result<(), E> {
        match announced {
            Some(length) if length > self.input => Err(E::custom("a list longer than its bytes")),
            _ => Ok(()),
        }
    }
}

/// A deserializer, a visitor, a seed or an access, under a budget.
pub(super) struct Bounded<'b, T> {
    inner: T,
    budget: &'b Budget,
    /// Of a visitor: whether a sequence that it visits is a list, not a tuple or a struct.
    list: bool,
}

impl<'b, T> Bounded<'b, T> {
    pub(super) fn new(inner: T, budget: &'b Budget) -> Self {
        Self { inner, budget, list: false }
    }

    fn list(inner: T, budget: &'b Budget) -> Self {
        Self { inner, budget, list: true }
    }
}

macro_rules! forward_deserialize {
    ($($method:ident => $inner:ident / $wrap:ident),* $(,)?) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$inner(Bounded::$wrap(visitor, self.budget))
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Bounded<'_, D> {
    type Error = D::Error;

    forward_deserialize! {
        deserialize_any => deserialize_any / new,
        deserialize_bool => deserialize_bool / new,
        deserialize_i8 => deserialize_i8 / new,
        deserialize_i16 => deserialize_i16 / new,
        deserialize_i32 => deserialize_i32 / new,
        deserialize_i64 => deserialize_i64 / new,
        deserialize_i128 => deserialize_i128 / new,
        deserialize_u8 => deserialize_u8 / new,
        deserialize_u16 => deserialize_u16 / new,
        deserialize_u32 => deserialize_u32 / new,
        deserialize_u64 => deserialize_u64 / new,
        deserialize_u128 => deserialize_u128 / new,
        deserialize_f32 => deserialize_f32 / new,
        deserialize_f64 => deserialize_f64 / new,
        deserialize_char => deserialize_char / new,
        deserialize_str => deserialize_str / new,
        // Borrowed first: then the bytes are known to be there before they are copied.
        deserialize_string => deserialize_str / new,
        deserialize_bytes => deserialize_bytes / new,
        deserialize_byte_buf => deserialize_bytes / new,
        deserialize_option => deserialize_option / new,
        deserialize_unit => deserialize_unit / new,
        deserialize_seq => deserialize_seq / list,
        deserialize_map => deserialize_map / list,
        deserialize_identifier => deserialize_identifier / new,
        deserialize_ignored_any => deserialize_ignored_any / new,
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_unit_struct(name, Bounded::new(visitor, self.budget))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_newtype_struct(name, Bounded::new(visitor, self.budget))
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_tuple(length, Bounded::new(visitor, self.budget))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_tuple_struct(name, length, Bounded::new(visitor, self.budget))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_struct(name, fields, Bounded::new(visitor, self.budget))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_enum(name, variants, Bounded::new(visitor, self.budget))
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

macro_rules! forward_visit {
    ($($method:ident: $value:ty),* $(,)?) => {$(
        fn $method<E: Error>(self, value: $value) -> Result<V::Value, E> {
            self.inner.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Bounded<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    forward_visit! {
        visit_bool: bool,
        visit_i8: i8,
        visit_i16: i16,
        visit_i32: i32,
        visit_i64: i64,
        visit_i128: i128,
        visit_u8: u8,
        visit_u16: u16,
        visit_u32: u32,
        visit_u64: u64,
        visit_u128: u128,
        visit_f32: f32,
        visit_f64: f64,
        visit_char: char,
        visit_str: &str,
        visit_string: String,
        visit_bytes: &[u8],
        visit_byte_buf: Vec<u8>,
    }

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<V::Value, E> {
        self.budget.spend(value.len())?;
        self.inner.visit_borrowed_str(value)
    }

    fn visit_borrowed_bytes<E: Error>(self, value: &'de [u8]) -> Result<V::Value, E> {
        self.budget.spend(value.len())?;
        self.inner.visit_borrowed_bytes(value)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Bounded::new(inner, self.budget))
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(Bounded::new(inner, self.budget))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let Self { inner: visitor, budget, list } = self;
        if list {
            budget.length(inner.size_hint())?;
        }
        visitor.visit_seq(List { inner, budget, list, taken: 0, room: None })
    }

    fn visit_map<A: MapAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.budget.length(inner.size_hint())?;
        self.inner.visit_map(Bounded::new(inner, self.budget))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(Bounded::new(inner, self.budget))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Bounded<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Bounded::new(inner, self.budget))
    }
}

/// A list that is being read, and the room that a `Vec` of it has by now.
struct List<'b, A> {
    inner: A,
    budget: &'b Budget,
    list: bool,
    taken: usize,
    room: Option<usize>,
}

impl<A> List<'_, A> {
    /// Pays for the room that the next element needs.
    fn grow<E: Error>(&mut self, reserved: usize, element: usize) -> Result<(), E> {
        /// What serde's own `Vec` reserves in advance at most.
        const CAUTIOUS: usize = 1 << 20;
        let (before, room) = match self.room {
            None => (0, reserved.min(CAUTIOUS / element.max(1)).max(1)),
            Some(room) if self.taken < room => return Ok(()),
            Some(room) => (room, room.saturating_mul(2).max(4)),
        };
        self.room = Some(room);
        self.budget.spend((room - before).saturating_mul(element))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for List<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        if self.list && self.room.is_none_or(|room| self.taken == room) {
            let reserved = self.size_hint().unwrap_or(0);
            if self.inner.size_hint() != Some(0) {
                self.grow(reserved, size_of::<S::Value>())?;
            }
        }
        self.taken += 1;
        self.inner.next_element_seed(Bounded::new(seed, self.budget))
    }

    fn size_hint(&self) -> Option<usize> {
        let announced = self.inner.size_hint()?;
        Some(if self.list { announced.min(self.budget.input / RESERVE) } else { announced })
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Bounded<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        if self.inner.size_hint() != Some(0) {
            self.budget.spend(2 * size_of::<K::Value>())?;
        }
        self.inner.next_key_seed(Bounded::new(seed, self.budget))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.budget.spend(2 * size_of::<S::Value>())?;
        self.inner.next_value_seed(Bounded::new(seed, self.budget))
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint().map(|announced| announced.min(self.budget.input / RESERVE))
    }
}

impl<'de, 'b, A: EnumAccess<'de>> EnumAccess<'de> for Bounded<'b, A> {
    type Error = A::Error;
    type Variant = Bounded<'b, A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let (value, variant) = self.inner.variant_seed(Bounded::new(seed, self.budget))?;
        Ok((value, Bounded::new(variant, self.budget)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Bounded<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.newtype_variant_seed(Bounded::new(seed, self.budget))
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.inner.tuple_variant(length, Bounded::new(visitor, self.budget))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.inner.struct_variant(fields, Bounded::new(visitor, self.budget))
    }
}
