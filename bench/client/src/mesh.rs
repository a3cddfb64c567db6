//! mesh's HTTP API over its Unix socket, through hyper, with connections kept alive.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::UnixStream;

/// Idle connections kept; the rest are closed after their answer.
const IDLE_CONNECTIONS: usize = 64;

#[derive(Clone)]
pub struct Pool {
    socket: Arc<str>,
    party: Arc<str>,
    idle: Arc<Mutex<Vec<SendRequest<Full<Bytes>>>>>,
}

impl Pool {
    pub fn new(socket: &str, party: &str) -> Self {
        Self { socket: socket.into(), party: party.into(), idle: Arc::default() }
    }

    pub async fn put(&self, name: &str, expect: Option<&str>, to: &str) -> Result<()> {
        let body = json!({"expect": expect, "to": to}).to_string();
        match self.ask(Method::PUT, name, body).await? {
            (status, _) if status.is_success() => Ok(()),
            (status, answer) => bail!("{status}: {}", answer.trim()),
        }
    }

    /// Values are unique, so that the answer names the right one if it contains it.
    pub async fn holds(&self, name: &str, to: &str) -> Result<bool> {
        match self.ask(Method::GET, name, String::new()).await? {
            (status, answer) if status.is_success() => Ok(answer.contains(to)),
            (StatusCode::NOT_FOUND, _) => Ok(false),
            (status, answer) => bail!("{status}: {}", answer.trim()),
        }
    }

    async fn ask(&self, method: Method, name: &str, body: String) -> Result<(StatusCode, String)> {
        let mut connection = self.take().await?;
        let request = Request::builder()
            .method(method)
            .uri(format!("/v1/names/{}/{name}", self.party))
            .header("host", "localhost")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))?;
        let answer = connection.send_request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        self.give_back(connection);
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    async fn take(&self) -> Result<SendRequest<Full<Bytes>>> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(mut connection) = idle else { break };
            if connection.ready().await.is_ok() {
                return Ok(connection);
            }
        }
        let stream = UnixStream::connect(&*self.socket)
            .await
            .with_context(|| format!("connecting to {}", self.socket))?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }

    fn give_back(&self, connection: SendRequest<Full<Bytes>>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_CONNECTIONS {
            idle.push(connection);
        }
    }
}
