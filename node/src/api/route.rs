//! A line in the table of routes: what the router runs and what `/openapi.json` tells about it.

use axum::handler::Handler;
use axum::routing::{MethodRouter, delete, get, post, put};

use super::Api;

/// A parameter of the query, or a field of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Field {
    /// What it is called.
    pub(super) name: &'static str,
    /// Its type, as JSON Schema names it.
    pub(super) kind: &'static str,
    /// What it means.
    pub(super) means: &'static str,
}

/// Says what a field is.
pub(super) fn field(name: &'static str, kind: &'static str, means: &'static str) -> Field {
    Field { name, kind, means }
}

/// What a route answers with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// One thing in an envelope.
    Item,
    /// Several in an envelope.
    Items,
    /// JSON, one object a line, without an end.
    Lines,
    /// Text.
    Text,
    /// Frames in both directions, once the connection is upgraded: see [`crate::work::stream::frame`].
    Stream,
    /// JSON of a form of its own.
    Json,
}

/// One route.
pub(super) struct Route {
    /// Its verb, in small letters.
    pub(super) verb: &'static str,
    /// Its path.
    pub(super) path: &'static str,
    /// What it does, in a sentence.
    pub(super) does: &'static str,
    /// What may stand after the question mark.
    pub(super) query: Vec<Field>,
    /// What the body may hold.
    pub(super) body: Vec<Field>,
    /// What comes back.
    pub(super) form: Form,
    /// What runs.
    pub(super) run: MethodRouter<Api>,
}

impl Route {
    fn new(
        verb: &'static str,
        path: &'static str,
        does: &'static str,
        run: MethodRouter<Api>,
    ) -> Self {
        Self { verb, path, does, query: Vec::new(), body: Vec::new(), form: Form::Item, run }
    }

    /// Reads.
    pub(super) fn get<H, T>(path: &'static str, does: &'static str, run: H) -> Self
    where
        H: Handler<T, Api>,
        T: 'static,
    {
        Self::new("get", path, does, get(run))
    }

    /// Does something.
    pub(super) fn post<H, T>(path: &'static str, does: &'static str, run: H) -> Self
    where
        H: Handler<T, Api>,
        T: 'static,
    {
        Self::new("post", path, does, post(run))
    }

    /// Sets something.
    pub(super) fn put<H, T>(path: &'static str, does: &'static str, run: H) -> Self
    where
        H: Handler<T, Api>,
        T: 'static,
    {
        Self::new("put", path, does, put(run))
    }

    /// Takes something away.
    pub(super) fn delete<H, T>(path: &'static str, does: &'static str, run: H) -> Self
    where
        H: Handler<T, Api>,
        T: 'static,
    {
        Self::new("delete", path, does, delete(run))
    }

    /// With a query.
    pub(super) fn query<const N: usize>(self, query: [Field; N]) -> Self {
        Self { query: query.into(), ..self }
    }

    /// With a body.
    pub(super) fn body<const N: usize>(self, body: [Field; N]) -> Self {
        Self { body: body.into(), ..self }
    }

    /// Answering in another form than one item.
    pub(super) fn form(self, form: Form) -> Self {
        Self { form, ..self }
    }
}
