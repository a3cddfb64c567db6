//! Who may ask: checked for every request, whatever its verb, before any route sees it.
//!
//! ```text
//! Host ─► Origin, Sec-Fetch-Site ─► token and its role (TCP) ─► Content-Type ─► body: bounded, and in time
//! ```
//!
//! Nothing is trusted for coming from this machine. A page in a browser can make it send requests to any
//! address: by a name of its own that leads here (the Host is then not ours), or across sites (the Origin is
//! then not ours). No answer carries a CORS header, so no other site reads one.
//!
//! Those who balance or restart nodes often cannot carry a token. They may ask whether the node is well ([`PROBES`]),
//! and are told yes or no.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName,
    ORIGIN, UPGRADE, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::json;

use super::answer::{Problem, quoted};
use super::guest::Guest;
use super::token::{Role, Tokens};

/// The longest body: no question is longer.
pub(super) const MAX_BODY: usize = 1 << 20;
/// A body must be here within this time.
const BODY_PATIENCE: Duration = Duration::from_secs(10);
/// How a browser says whose page asks.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// What is answered on TCP without a token, too.
pub(super) const PROBES: [&str; 2] = ["/healthz", "/readyz"];

/// Where a request came in.
#[derive(Clone)]
pub(super) enum Door {
    /// The Unix socket: the file's mode says who may.
    Socket,
    /// TCP at an address: the token says who may.
    Tcp {
        /// As bound.
        at: SocketAddr,
        /// By which further names it may be asked: the owner listed them.
        hosts: Vec<String>,
        /// What the bearer must know.
        tokens: Tokens,
    },
}

/// Marks requests that came over the socket, for what is never said over TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OverSocket(pub(super) bool);

/// Marks requests of those who have shown no token.
#[derive(Debug, Clone, Copy)]
struct Probe;

/// Lets a request through, or says why not.
pub(super) async fn check(State(door): State<Arc<Door>>, request: Request, next: Next) -> Response {
    let mut response = match admit(&door, request).await {
        Ok(mut request) => {
            request.extensions_mut().insert(OverSocket(matches!(*door, Door::Socket)));
            let probe = request.extensions().get::<Probe>().is_some();
            let response = next.run(request).await;
            if probe { yes_or_no(response.status()) } else { response }
        }
        Err(problem) => refuse(problem),
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn refuse(problem: Problem) -> Response {
    let unauthorized = problem.status == StatusCode::UNAUTHORIZED;
    let mut response = problem.into_response();
    // Whoever is refused gets one answer a connection, so that a queue of bad requests holds no place.
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    if unauthorized {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// What a probe is told, on a connection that ends with it.
fn yes_or_no(status: StatusCode) -> Response {
    let mut response = (status, Json(json!({ "ok": status.is_success() }))).into_response();
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

async fn admit(door: &Door, request: Request) -> Result<Request, Problem> {
    let (mut parts, body) = request.into_parts();
    let host = check_host(door, &parts.uri, &parts.headers)?;
    check_origin(door, &host, &parts.headers)?;
    match door {
        Door::Tcp { .. } if is_probe(&parts) => {
            parts.extensions.insert(Probe);
            return Ok(Request::from_parts(parts, Body::empty()));
        }
        Door::Tcp { tokens, .. } => {
            let role = check_token(tokens, &parts.headers)?;
            check_role(role, &parts)?;
        }
        Door::Socket => {}
    }
    if let Some(guest) = parts.extensions.get::<Guest>() {
        guest.vouch();
    }
    check_type(&parts.headers)?;
    let bytes = read(&parts.headers, body).await?;
    if !bytes.is_empty() && !parts.headers.contains_key(CONTENT_TYPE) {
        return Err(wrong_type("nothing"));
    }
    Ok(Request::from_parts(parts, Body::from(bytes)))
}

/// The one value of a header; several are an attempt to be read in two ways.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Problem> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else { return Ok(None) };
    match (first.to_str(), values.next()) {
        (Ok(text), None) => Ok(Some(text)),
        _ => Err(Problem::bad(
            format!("the header {name} cannot be read"),
            "it is there twice, or is not ASCII",
            "send it once",
        )),
    }
}

fn check_host(door: &Door, uri: &Uri, headers: &HeaderMap) -> Result<String, Problem> {
    let host = single(headers, &HOST)?.unwrap_or_default();
    let is_ours = |text: &str| match door {
        Door::Socket => names_this_machine(text),
        Door::Tcp { at, hosts, .. } => {
            hosts.iter().any(|one| one == text) || names_listener(text, *at, is_own_address)
        }
    };
    // A proxy's form of request names the host a second time.
    let again = uri.authority().map(|authority| authority.as_str());
    if is_ours(host) && again.is_none_or(|text| text == host) {
        return Ok(host.to_owned());
    }
    let (cause, hint) = match door {
        Door::Socket => ("on this socket the host is localhost", "send Host: localhost".to_owned()),
        Door::Tcp { at, .. } => (
            "a page that names another host may be trying to reach this node through a browser",
            format!(
                "ask by address and port (the node listens on {at}), or list the name in api_hosts of its config.toml"
            ),
        ),
    };
    let message = format!("{} is no name of this node's API", quoted(host));
    Err(Problem::forbidden(StatusCode::MISDIRECTED_REQUEST, message, cause, hint))
}

/// Whether a Host header names the machine itself, in a way that nobody's name server can change.
fn names_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    };
    name.eq_ignore_ascii_case("localhost") || name == "127.0.0.1" || name == "[::1]"
}

/// Whether a Host header is exactly where we listen.
fn names_listener(host: &str, at: SocketAddr, is_own: impl Fn(IpAddr) -> bool) -> bool {
    let any = at.ip().is_unspecified();
    // "0.0.0.0" is where one listens, never where one asks: browsers take it for this machine.
    let here = |ip: IpAddr| match any {
        true => !ip.is_unspecified() && (ip.is_loopback() || is_own(ip)),
        false => ip == at.ip(),
    };
    let named = |port: Option<u16>, name: &str| {
        let local = at.ip().is_loopback() || at.ip().is_unspecified();
        local && name.eq_ignore_ascii_case("localhost") && port.unwrap_or(80) == at.port()
    };
    if let Ok(address) = host.parse::<SocketAddr>() {
        return address.to_string() == host && address.port() == at.port() && here(address.ip());
    }
    // Without a port it is HTTP's own.
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return at.port() == 80 && here(ip);
    }
    match host.rsplit_once(':') {
        Some((name, port)) => port.parse().is_ok_and(|port| named(Some(port), name)),
        None => named(None, host),
    }
}

fn is_own_address(ip: IpAddr) -> bool {
    if_addrs::get_if_addrs().is_ok_and(|all| all.iter().any(|one| one.ip() == ip))
}

fn check_origin(door: &Door, host: &str, headers: &HeaderMap) -> Result<(), Problem> {
    let foreign = |what: &str, said: &str| {
        Err(Problem::forbidden(
            StatusCode::FORBIDDEN,
            "a page of another site may not ask this node",
            format!("the request says {what}: {}", quoted(said)),
            "use the mesh command, or open the node's own address",
        ))
    };
    if let Some(origin) = single(headers, &ORIGIN)? {
        // Over the socket no page is ours.
        let own = matches!(door, Door::Tcp { .. }) && origin.strip_prefix("http://") == Some(host);
        if !own {
            return foreign("Origin", origin);
        }
    }
    match single(headers, &SEC_FETCH_SITE)? {
        None | Some("same-origin" | "none") => Ok(()),
        Some(site) => foreign("Sec-Fetch-Site", site),
    }
}

/// Whether it asks only how the node is, and shows no token. One that shows a wrong one is refused as ever.
fn is_probe(parts: &Parts) -> bool {
    let reads = parts.method == Method::GET || parts.method == Method::HEAD;
    reads && PROBES.contains(&parts.uri.path()) && !parts.headers.contains_key(AUTHORIZATION)
}

fn check_token(tokens: &Tokens, headers: &HeaderMap) -> Result<Role, Problem> {
    let claimed = single(headers, &AUTHORIZATION)?.and_then(|text| {
        let (scheme, claimed) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(claimed.trim())
    });
    let cause = match claimed.map(|claimed| tokens.role(claimed)) {
        Some(Some(role)) => return Ok(role),
        Some(None) => "the token is not this node's",
        None => "the request has no token (Authorization: Bearer TOKEN)",
    };
    Err(Problem::forbidden(
        StatusCode::UNAUTHORIZED,
        "the HTTP API on TCP needs the node's token",
        cause,
        "the token is in the file `token` of the node's directory: point MESH_TOKEN_FILE at a copy",
    ))
}

fn check_role(role: Role, parts: &Parts) -> Result<(), Problem> {
    let method = &parts.method;
    // What becomes a stream runs commands, whatever its verb.
    let is_stream = parts.headers.contains_key(UPGRADE);
    let reads = (method == Method::GET || method == Method::HEAD) && !is_stream;
    match role {
        Role::Owner => Ok(()),
        Role::Auditor if reads => Ok(()),
        Role::Auditor => {
            let what = if is_stream { "a stream" } else { method.as_str() };
            Err(Problem::forbidden(
                StatusCode::FORBIDDEN,
                "this token may only read",
                format!("it is an auditor's, and {what} may change something"),
                "the owner's token is in the file `token` of the node's directory",
            ))
        }
    }
}

/// A form or a plain text is what a foreign page can send without asking; JSON is not.
fn check_type(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(text) = single(headers, &CONTENT_TYPE)? else { return Ok(()) };
    let kind = text.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") { Ok(()) } else { Err(wrong_type(text)) }
}

fn wrong_type(said: &str) -> Problem {
    Problem::forbidden(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "the body must be JSON",
        format!("the request's Content-Type is {}", quoted(said)),
        "send Content-Type: application/json",
    )
}

async fn read(headers: &HeaderMap, body: Body) -> Result<Bytes, Problem> {
    let too_long = || {
        Problem::forbidden(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the body is too long",
            format!("at most {MAX_BODY} bytes are taken"),
            "send less",
        )
    };
    let length = single(headers, &CONTENT_LENGTH)?.and_then(|text| text.parse::<u64>().ok());
    if length.is_some_and(|length| length > MAX_BODY as u64) {
        return Err(too_long());
    }
    let limited = http_body_util::Limited::new(body, MAX_BODY);
    let whole = http_body_util::BodyExt::collect(limited);
    match tokio::time::timeout(BODY_PATIENCE, whole).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_long()),
        Ok(Err(_)) => Err(Problem::bad(
            "the body broke off",
            "the connection did not carry all of it",
            "again",
        )),
        Err(_) => Err(Problem::forbidden(
            StatusCode::REQUEST_TIMEOUT,
            "the body did not come",
            format!("it must be here within {} s", BODY_PATIENCE.as_secs()),
            "send it at once",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(host: &str, at: &str) -> bool {
        names_listener(host, at.parse().unwrap(), |ip| ip == IpAddr::from([10, 0, 0, 7]))
    }

    #[test]
    fn a_host_is_exactly_where_we_listen() {
        assert!(named("127.0.0.1:6376", "127.0.0.1:6376"));
        assert!(named("localhost:6376", "127.0.0.1:6376"));
        assert!(named("[::1]:6376", "[::1]:6376"));
        assert!(named("10.0.0.7:6376", "0.0.0.0:6376"));
        assert!(named("localhost", "127.0.0.1:80") && named("127.0.0.1", "127.0.0.1:80"));
    }

    #[test]
    fn every_other_host_is_refused() {
        let hosts = [
            "",
            "evil.example",
            "evil.example:6376",
            "127.0.0.1",
            "localhost",
            "127.0.0.1:80",
            "127.0.0.1:6376.evil.example",
            "localhost.evil.example:6376",
            "10.0.0.7:6376",
            "127.0.0.2:6376",
            "[::1]:6376",
            "127.0.0.1:06376",
            "127.1:6376",
            "0.0.0.0:6376",
            ":6376",
            "user@127.0.0.1:6376",
            "[0:0:0:0:0:0:0:1]:6376",
        ];
        for host in hosts {
            assert!(!named(host, "127.0.0.1:6376"), "{host}");
        }
        assert!(!named("localhost:6376", "10.0.0.7:6376"));
        assert!(!named("10.0.0.8:6376", "0.0.0.0:6376"));
        assert!(!named("0.0.0.0:6376", "0.0.0.0:6376"));
    }

    #[test]
    fn on_the_socket_only_names_that_no_name_server_gives_are_taken() {
        for host in ["localhost", "localhost:1", "LOCALHOST", "127.0.0.1:8080", "[::1]", "[::1]:80"]
        {
            assert!(names_this_machine(host), "{host}");
        }
        for host in ["", "evil.example", "evil.example:80", "localhost.evil.example", "localhost:x"]
        {
            assert!(!names_this_machine(host), "{host}");
        }
    }
}
