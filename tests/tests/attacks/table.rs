//! The attack table: YAML rows, multiplied by listeners and HTTP versions into cases, and the encoding of a case.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;

use crate::attacks::recorder::MARK;
use crate::attacks::wire::find;

/// Folder of the table's files. They are read at run time, so a new row needs no build.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/tests/attacks/table");
const CLUSTERS: &str = "/apis/cluster.karmada.io/v1alpha1/clusters";
const FLEET_PROXY: &str = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy";
const CACHE: &str = "/apis/search.karmada.io/v1alpha1/search/cache";
/// File whose rows run last, because a failure of one can terminate the process.
const LAST_FILE: &str = "nested.yaml";
/// Size of oversized values.
const OVERSIZED_BYTES: usize = 300 << 10;
/// Number of header lines in floods.
const FLOOD_LINES: usize = 3_000;
/// Default path of a row; it is never cached.
const DEFAULT_PATH: &str = "/api/v1/namespaces/default/services/{m}";
/// Statuses that `refused` matches; 0 is a closed connection or a reset stream.
const REFUSED_STATUSES: [u16; 12] = [0, 400, 401, 403, 404, 405, 413, 414, 421, 431, 501, 505];

/// Text, or bytes that are not UTF-8.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum Text {
    Plain(String),
    Bytes { base64: String },
}

impl Text {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Plain(text) => text.clone().into_bytes(),
            Self::Bytes { base64 } => STANDARD.decode(base64).expect("base64"),
        }
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self::Plain(text.to_owned())
    }
}

/// Row of the table. Texts may have placeholders (`Case::fill`).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Row {
    pub id: String,
    #[serde(default = "default_listeners")]
    pub listeners: Vec<String>,
    #[serde(default = "default_versions")]
    pub versions: Vec<u8>,
    #[serde(default = "default_caller", rename = "as")]
    pub caller: String,
    #[serde(default = "default_method")]
    pub method: Text,
    /// Path after the listener's prefix.
    pub path: Option<Text>,
    /// Complete target that replaces prefix and path.
    pub target: Option<Text>,
    /// Complete first line of HTTP/1.1, including its end.
    pub line: Option<Text>,
    /// HTTP/1.1 header lines, sent unchanged; HTTP/2 sends the names in lower case.
    #[serde(default)]
    pub headers: Vec<Text>,
    /// Replaces the single `Host` header.
    pub hosts: Option<Vec<Text>>,
    /// Omits the caller's credentials.
    #[serde(default)]
    pub bare: bool,
    /// All HTTP/2 fields; replaces all other settings.
    pub fields: Option<Vec<Text>>,
    pub body: Option<Text>,
    /// Trailers of HTTP/2.
    #[serde(default)]
    pub trailers: Vec<Text>,
    #[serde(default)]
    pub expect: Expectation,
}

fn default_listeners() -> Vec<String> {
    vec!["control-plane".to_owned(), "aggregated".to_owned()]
}

fn default_versions() -> Vec<u8> {
    vec![1]
}

fn default_caller() -> String {
    "mallory".to_owned()
}

fn default_method() -> Text {
    "GET".into()
}

/// Expected result of a case.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Expectation {
    /// A number, `refused`, or a list of these. The default is 200, or `refused` if no request is expected to arrive.
    pub status: Value,
    /// Identity with which the request arrives at a member.
    pub arrives: ExpectedArrival,
    /// True if a request with a truncated body may arrive.
    pub truncated: bool,
    /// Targets that may arrive, without the query; the default is the target that was sent.
    pub arrives_at: Vec<Text>,
    /// Header lines that must arrive, with names in lower case.
    pub carries: Vec<Text>,
    /// Names of headers that must not arrive, in lower case.
    pub lacks: Vec<String>,
    /// Texts that the response body must contain.
    pub contains: Vec<Text>,
    /// Texts that the response body must not contain.
    pub excludes: Vec<Text>,
}

/// Request that is expected at a member.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(untagged)]
pub enum ExpectedArrival {
    /// One request with the caller's identity.
    #[default]
    Default,
    /// `nothing`: no request; `caller`: one request with the caller's identity; `caller?`: either of the two.
    Word(String),
    Identity(ExpectedIdentity),
}

/// Identity other than the caller's.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedIdentity {
    pub user: String,
    #[serde(default)]
    pub groups: Vec<String>,
    /// True if it is also accepted that no request arrives.
    #[serde(default)]
    pub optional: bool,
}

/// Address that a case is sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    ControlPlane,
    Aggregated,
    Ui,
}

/// Listener and path prefix to a member.
#[derive(Debug, Clone)]
pub struct Listener {
    pub name: String,
    pub endpoint: Endpoint,
    pub prefix: String,
    query: &'static str,
    /// True if a request is sent to several members.
    pub fans_out: bool,
}

impl Listener {
    /// Parses a listener's name, such as `tunnel-direct`: a route, and the endpoint if it is not the control plane.
    fn parse(name: &str) -> Result<Self> {
        let (route, endpoint) = match name {
            "control-plane" => ("cluster", Endpoint::ControlPlane),
            "aggregated" => ("cluster", Endpoint::Aggregated),
            "ui" => ("cluster", Endpoint::Ui),
            _ => match name.split_once('-') {
                None => (name, Endpoint::ControlPlane),
                Some((route, "direct")) => (route, Endpoint::Aggregated),
                Some((route, "ui")) => (route, Endpoint::Ui),
                Some(_) => bail!("unknown listener {name}"),
            },
        };
        let (prefix, query) = match route {
            "cluster" => (format!("{CLUSTERS}/m1/proxy"), ""),
            "tunnel" => (format!("{CLUSTERS}/m2/proxy"), ""),
            "every" => (format!("{CLUSTERS}/*/proxy"), ""),
            "fleet" => (FLEET_PROXY.to_owned(), "cluster=m1"),
            "cache" => (CACHE.to_owned(), ""),
            _ => bail!("unknown listener {name}"),
        };
        Ok(Self { name: name.to_owned(), endpoint, prefix, query, fans_out: route == "every" })
    }
}

/// Listeners that `all` stands for: every route to a member.
const ALL_LISTENERS: [&str; 9] =
    ["control-plane", "aggregated", "ui", "tunnel", "tunnel-direct", "every", "every-direct", "fleet", "fleet-direct"];

/// Values that are known only when the system is running.
#[derive(Debug, Default)]
pub struct RuntimeValues {
    pub endpoints: BTreeMap<&'static str, SocketAddr>,
    /// Bearer tokens by caller.
    pub tokens: BTreeMap<String, String>,
    /// Cookies of the UI by caller.
    pub cookies: BTreeMap<String, String>,
    /// Addresses of the members, as in their Clusters.
    pub members: BTreeMap<&'static str, String>,
}

/// Row at one listener with one HTTP version.
#[derive(Debug, Clone)]
pub struct Case {
    pub row: Row,
    pub listener: Listener,
    pub version: u8,
    /// Mark that identifies the case in requests that arrive.
    pub mark: String,
    pub runtime_values: Arc<RuntimeValues>,
}

/// All rows, by file; those of [`LAST_FILE`] are the last ones.
pub fn rows() -> Result<Vec<Row>> {
    let files = fs::read_dir(FOLDER)?.map(|entry| Ok(entry?.path()));
    let mut files: Vec<PathBuf> = files.collect::<Result<_>>()?;
    files.sort_by_cached_key(|file| (file.ends_with(LAST_FILE), file.clone()));
    let mut rows = Vec::new();
    for file in files {
        // Parsed through JSON, so that errors name the fields of an invalid row.
        let values: Vec<Value> =
            serde_saphyr::from_str(&fs::read_to_string(&file)?).with_context(|| file.display().to_string())?;
        for value in values {
            let id = value["id"].as_str().unwrap_or_default().to_owned();
            rows.push(serde_json::from_value(value).with_context(|| format!("row {id:?} of {}", file.display()))?);
        }
    }
    Ok(rows)
}

/// Cases of the rows, in order.
pub fn cases(rows: &[Row], runtime_values: &Arc<RuntimeValues>) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for row in rows {
        let names = row.listeners.iter().map(String::as_str);
        let names: Vec<&str> =
            names.flat_map(|name| if name == "all" { ALL_LISTENERS.to_vec() } else { vec![name] }).collect();
        for name in names {
            let listener = Listener::parse(name).with_context(|| row.id.clone())?;
            for version in &row.versions {
                // The UI of `up` uses plain HTTP, which negotiates no version.
                if listener.endpoint == Endpoint::Ui && *version == 2 {
                    continue;
                }
                let (row, listener, runtime_values) = (row.clone(), listener.clone(), Arc::clone(runtime_values));
                let mark = format!("{MARK}{:04}", cases.len());
                cases.push(Case { row, listener, version: *version, mark, runtime_values });
            }
        }
    }
    Ok(cases)
}

impl Case {
    pub fn name(&self) -> String {
        format!("{}@{}/h{}", self.row.id, self.listener.name, self.version)
    }

    pub fn address(&self) -> SocketAddr {
        let endpoint = match self.listener.endpoint {
            Endpoint::ControlPlane => "control-plane",
            Endpoint::Aggregated => "aggregated",
            Endpoint::Ui => "ui",
        };
        self.runtime_values.endpoints.get(endpoint).copied().unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// Replaces placeholders: `{m}` (the mark), `{prefix}`, `{query}` (the listener's parameters), `{address}`, `{m1}`
    /// and `{m2}` (the members' addresses), `{token:CALLER}`, `{ws:CALLER}` (the token as a WebSocket subprotocol) and
    /// `{cookie:CALLER}`. `{long}` exceeds the limit for a head; `{flood}`, `{connections}` and `{groups}` expand to
    /// thousands of lines.
    pub fn fill(&self, text: &Text) -> Vec<u8> {
        let mut bytes = text.bytes();
        // Few texts have placeholders, and some expansions are large.
        if !bytes.contains(&b'{') {
            return bytes;
        }
        let mut put = |name: &str, value: &dyn Fn() -> String| {
            let name = format!("{{{name}}}").into_bytes();
            while let Some(at) = find(&bytes, &name) {
                bytes.splice(at..at + name.len(), value().into_bytes());
            }
        };
        put("m", &|| self.mark.clone());
        put("long", &|| "x".repeat(OVERSIZED_BYTES));
        put("flood", &|| lines(|nth| format!("X-Flood-{nth}: 1")));
        put("connections", &|| lines(|nth| format!("Connection: impersonate-user, x{nth}")));
        put("groups", &|| lines(|_| "Impersonate-Group: root-of-all".to_owned()));
        put("prefix", &|| self.listener.prefix.clone());
        put("query", &|| self.listener.query.to_owned());
        put("address", &|| self.address().to_string());
        for (member, address) in &self.runtime_values.members {
            put(member, &|| address.clone());
        }
        for (caller, token) in &self.runtime_values.tokens {
            put(&format!("token:{caller}"), &|| token.clone());
            put(&format!("ws:{caller}"), &|| subprotocol(token));
        }
        for (caller, cookie) in &self.runtime_values.cookies {
            put(&format!("cookie:{caller}"), &|| cookie.clone());
        }
        bytes
    }

    /// Path after the prefix, without a query.
    pub fn path(&self) -> Vec<u8> {
        let path = self.row.path.as_ref().map_or_else(|| self.fill(&DEFAULT_PATH.into()), |path| self.fill(path));
        path.split(|byte| *byte == b'?').next().unwrap_or_default().to_vec()
    }

    /// Request target, with the case's mark.
    pub fn target(&self) -> Vec<u8> {
        if let Some(target) = &self.row.target {
            return self.fill(target);
        }
        let mut target = self.listener.prefix.clone().into_bytes();
        target.extend(self.row.path.as_ref().map_or_else(|| self.fill(&DEFAULT_PATH.into()), |path| self.fill(path)));
        let mark = format!("m={}", self.mark);
        for parameter in [self.listener.query, &mark] {
            if parameter.is_empty() || parameter == mark && find(&target, self.mark.as_bytes()).is_some() {
                continue;
            }
            target.push(if target.contains(&b'?') { b'&' } else { b'?' });
            target.extend(parameter.bytes());
        }
        target
    }

    pub fn first_line(&self) -> Vec<u8> {
        match &self.row.line {
            Some(line) => self.fill(line),
            None => [&self.fill(&self.row.method), &b" "[..], &self.target(), b" HTTP/1.1\r\n"].concat(),
        }
    }

    /// Header lines with the caller's credentials.
    fn credential_headers(&self) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        if self.row.bare {
            return lines;
        }
        if self.listener.endpoint == Endpoint::Ui {
            lines.push(b"X-Crowsnest-Client: attacks".to_vec());
        }
        match self.listener.endpoint {
            Endpoint::Ui => {
                let cookie = self.runtime_values.cookies.get(&self.row.caller);
                lines.extend(cookie.map(|cookie| format!("Cookie: {cookie}").into_bytes()));
            }
            _ => {
                let token = self.runtime_values.tokens.get(&self.row.caller);
                lines.extend(token.map(|token| format!("Authorization: Bearer {token}").into_bytes()));
            }
        }
        lines
    }

    pub fn header_lines(&self) -> Vec<Vec<u8>> {
        let mut lines: Vec<Vec<u8>> = match &self.row.hosts {
            Some(hosts) => hosts.iter().map(|host| [b"Host: ", &*self.fill(host)].concat()).collect(),
            None => vec![format!("Host: {}", self.address()).into_bytes()],
        };
        lines.extend(self.credential_headers());
        lines.extend(self.row.headers.iter().map(|line| self.fill(line)));
        let has_framing = |line: &Vec<u8>| {
            let line = line.to_ascii_lowercase();
            line.starts_with(b"content-length") || find(&line, b"transfer-encoding:").is_some()
        };
        if !self.body().is_empty() && !lines.iter().any(has_framing) {
            lines.push(format!("Content-Length: {}", self.body().len()).into_bytes());
        }
        lines
    }

    pub fn body(&self) -> Vec<u8> {
        self.row.body.as_ref().map(|body| self.fill(body)).unwrap_or_default()
    }

    /// Fields of HTTP/2.
    pub fn fields(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        if let Some(fields) = &self.row.fields {
            return fields.iter().map(|field| split_field(&self.fill(field))).collect();
        }
        let pseudo = |name: &str, value: Vec<u8>| (name.as_bytes().to_vec(), value);
        let mut fields = vec![
            pseudo(":method", self.fill(&self.row.method)),
            pseudo(":scheme", b"https".to_vec()),
            pseudo(":authority", self.address().to_string().into_bytes()),
            pseudo(":path", self.target()),
        ];
        let lines = self.credential_headers().into_iter().chain(self.row.headers.iter().map(|line| self.fill(line)));
        fields.extend(lines.map(|line| split_field(&line)).map(|(name, value)| (name.to_ascii_lowercase(), value)));
        fields
    }

    pub fn trailers(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.row.trailers.iter().map(|line| split_field(&self.fill(line))).collect()
    }

    /// True if a status is expected.
    pub fn expects(&self, status: u16) -> Result<bool> {
        let words = match &self.row.expect.status {
            Value::Null if self.arrives() == "nothing" => return Ok(REFUSED_STATUSES.contains(&status)),
            Value::Null => return Ok(status == 200),
            Value::Array(words) => words.as_slice(),
            word => std::slice::from_ref(word),
        };
        for word in words {
            let is_match = match (word.as_u64(), word.as_str()) {
                (Some(number), _) => u64::from(status) == number,
                (_, Some("refused")) => REFUSED_STATUSES.contains(&status),
                _ => bail!("{word} is not a status"),
            };
            if is_match {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Expected arrival as a word: `nothing`, `caller` or `caller?`.
    pub fn arrives(&self) -> &str {
        match &self.row.expect.arrives {
            ExpectedArrival::Default => "caller",
            ExpectedArrival::Word(word) => word,
            ExpectedArrival::Identity(identity) if identity.optional => "caller?",
            ExpectedArrival::Identity(_) => "caller",
        }
    }

    /// Fails if a row is inconsistent.
    pub fn check(&self) -> Result<()> {
        self.expects(200)?;
        ensure!(["caller", "caller?", "nothing"].contains(&self.arrives()), "unknown expectation {:?}", self.arrives());
        let wire =
            if self.version == 2 { crate::attacks::http2::request(self) } else { crate::attacks::http1::request(self) };
        ensure!(find(&wire, self.mark.as_bytes()).is_some(), "the request does not contain the mark");
        Ok(())
    }
}

/// Thousands of lines, one for each number.
fn lines(line: impl Fn(usize) -> String) -> String {
    (0..FLOOD_LINES).map(|nth| line(nth) + "\r\n").collect()
}

/// Splits `name: value`; the name may begin with a colon.
fn split_field(line: &[u8]) -> (Vec<u8>, Vec<u8>) {
    match line.iter().skip(1).position(|byte| *byte == b':') {
        Some(at) => {
            let value = &line[at + 2..];
            (line[..=at].to_vec(), value.strip_prefix(b" ").unwrap_or(value).to_vec())
        }
        None => (line.to_vec(), Vec::new()),
    }
}

/// WebSocket subprotocol in which a browser sends a token (as kube-apiserver accepts it).
pub fn subprotocol(token: &str) -> String {
    let encoded = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(token);
    format!("base64url.bearer.authorization.k8s.io.{encoded}")
}
