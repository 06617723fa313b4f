//! Attacks on the web UI's listener of a running `crowsnest up`: a hostile member, pages of other sites and forged
//! cookies. Also checks that other local users cannot read the data directory.

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Process, binary, free_port, wait_for};
use serde_json::json;

mod member;

use member::{DOCUMENT, HOSTILE_HEADERS};

static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    crate::use_ring();
    tokio::runtime::Runtime::new().expect("a runtime")
});

const MEMBER: &str = "/apis/cluster.karmada.io/v1alpha1/clusters/hostile/proxy";
/// Page of a service in a member.
const PAGE: &str = "/api/v1/namespaces/default/services/page/proxy/";
/// Maximum growth of memory, in bytes, through thousands of refused requests.
const MAX_GROWTH: u64 = 24 << 20;

/// Head and body of a response.
struct Response {
    head: String,
    body: String,
}

impl Response {
    fn status(&self) -> u16 {
        self.head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default()
    }

    /// All values of a header.
    fn values(&self, header: &str) -> Vec<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.filter(|(name, _)| name.eq_ignore_ascii_case(header)).map(|(_, value)| value.trim()).collect()
    }

    /// Name and value of the single cookie that is set and not deleted.
    fn cookie(&self) -> Result<String> {
        let set = self.values("set-cookie").into_iter().filter(|cookie| !cookie.contains("Max-Age=0"));
        let cookies: Vec<&str> = set.filter_map(|cookie| cookie.split(';').next()).collect();
        ensure!(cookies.len() == 1, "{}", self.head);
        Ok(cookies[0].to_owned())
    }
}

/// UI of a fleet, and the token in its address.
struct Ui {
    address: String,
    token: String,
}

impl Ui {
    fn from_fleet(fleet: &Fleet) -> Result<Self> {
        let (address, token) = fleet.ui_url.split_once("/#token=").context("no token in the UI's address")?;
        Ok(Self { address: address.trim_start_matches("http://").to_owned(), token: token.to_owned() })
    }

    /// Sends a request with these header lines only. For an upgrade, the response ends with its head.
    fn send(&self, target: &str, headers: &[String], body: &str) -> Result<Response> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        write!(stream, "{target} HTTP/1.1\r\n{lines}Content-Length: {}\r\n\r\n{body}", body.len())?;
        let mut read = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            let count = stream.read(&mut chunk)?;
            read.extend_from_slice(&chunk[..count]);
            let upgraded = read.starts_with(b"HTTP/1.1 101") && read.windows(4).any(|four| four == b"\r\n\r\n");
            if count == 0 || upgraded {
                break;
            }
        }
        let text = String::from_utf8_lossy(&read).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").with_context(|| format!("no response to {target}: {text}"))?;
        Ok(Response { head: head.to_owned(), body: body.to_owned() })
    }

    /// Headers of the UI's own page, and additional ones.
    fn own_headers(&self, extra_headers: &[&str]) -> Vec<String> {
        let headers = [
            format!("Host: {}", self.address),
            format!("Origin: http://{}", self.address),
            "X-Crowsnest-Client: web".to_owned(),
            "Sec-Fetch-Site: same-origin".to_owned(),
            "Content-Type: application/json".to_owned(),
            "Connection: close".to_owned(),
        ];
        headers.into_iter().chain(extra_headers.iter().map(|line| (*line).to_owned())).collect()
    }

    /// Signs in with the token; returns the cookie of the session.
    fn sign_in(&self) -> Result<String> {
        let response =
            self.send("POST /ui/session", &self.own_headers(&[]), &json!({"token": self.token}).to_string())?;
        ensure!(
            response.status() == 200 && response.body.contains("system:admin"),
            "{}\n{}",
            response.head,
            response.body
        );
        response.cookie()
    }
}

#[test]
fn the_ui_is_isolated_from_other_origins() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let fleet = Fleet::start_with_env(&data, &["--no-members"], &[("CROWSNEST_LOG", OsString::from("debug"))])?;
    let ui = Ui::from_fleet(&fleet)?;
    let result = RUNTIME.block_on(member::join(&fleet)).and_then(|()| {
        let cookie = format!("Cookie: {}", ui.sign_in()?);
        member_headers_do_not_affect_the_origin(&fleet, &ui, &cookie)?;
        websockets_of_other_origins_are_refused(&ui, &cookie)?;
        pages_of_other_sites_are_refused(&ui, &cookie)?;
        forged_cookies_do_not_grow_memory(&ui, &data)?;
        a_copied_cookie_ends_with_its_session(&ui)
    });
    result.with_context(|| fleet.log())?;
    old_tls_is_refused(&fleet)?;
    data_is_readable_by_its_owner_only(&data)?;

    // A session survives a restart, because its key is in the data directory.
    let cookie = format!("Cookie: {}", ui.sign_in()?);
    ensure!(!cookie.contains(&ui.token), "the cookie contains the token");
    ensure!(fleet.stop()?.success());
    let log = fs::read_to_string(data.with_extension("log"))?;
    ensure!(
        log.contains("DEBUG") && !log.contains(&ui.token) && !log.contains(&cookie[8..]),
        "a credential is in the log"
    );
    let fleet = Fleet::start(&data, &["--no-members"])?;
    let restarted_ui = Ui::from_fleet(&fleet)?;
    let response = restarted_ui.send("GET /ui/session", &restarted_ui.own_headers(&[&cookie]), "")?;
    ensure!(response.status() == 200 && response.body.contains("system:admin"), "{}\n{}", response.head, response.body);
    replicas_accept_each_others_sessions(&fleet, dir.path()).with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// Starts a `serve` process with only the UI of a fleet; returns the process and its address.
fn start_ui(fleet: &Fleet, data: &Path, key: &Path) -> Result<(Process, String)> {
    let address = format!("127.0.0.1:{}", free_port()?);
    let mut command = Command::new(binary()?);
    command.args(["-v", "serve", "--roles=ui", "--metrics-bind-address=0", "--health-probe-bind-address=0"]);
    command.args(["--reload-interval=1", "--ui-host=fleet.example", "--ui-listen", &address, "--data-dir"]).arg(data);
    command.arg("--kubeconfig").arg(fleet.kubeconfig("cp")).arg("--ui-session-key-file").arg(key);
    let process = Process::spawn(command.stderr(fs::File::create(data.with_extension("log"))?))?;
    wait_for("the UI to serve", || Ok(TcpStream::connect(&address).is_ok()))?;
    Ok((process, address))
}

/// Several processes with the same key accept each other's sessions, and the key can be rotated at run time.
fn replicas_accept_each_others_sessions(fleet: &Fleet, folder: &Path) -> Result<()> {
    let key = folder.join("key");
    let (first, second) = ("1".repeat(40), "2".repeat(40));
    fs::write(&key, &first)?;
    let processes = ["one", "two"].map(|name| start_ui(fleet, &folder.join(name), &key));
    let [one, two] = processes;
    let ((mut one, at_one), (mut two, at_two)) = (one?, two?);
    let token = Ui::from_fleet(fleet)?.token;
    let [first_ui, second_ui] = [at_one, at_two].map(|address| Ui { address, token: token.clone() });
    let status = |ui: &Ui, cookie: &str| {
        Ok::<_, anyhow::Error>(ui.send("GET /ui/session", &ui.own_headers(&[cookie]), "")?.status())
    };

    let cookie = format!("Cookie: {}", first_ui.sign_in()?);
    ensure!(status(&second_ui, &cookie)? == 200, "the other replica did not accept the session");
    // Only the host name of the proxy in front of the UI is accepted.
    for (host, expected) in [("fleet.example", 200), ("Fleet.Example:443", 200), ("evil.example", 421)] {
        let response = first_ui.send("GET /", &[format!("Host: {host}"), "Connection: close".to_owned()], "")?;
        ensure!(response.status() == expected, "{host}: {}", response.head);
    }
    // While the old key is listed after the new one, its cookies are valid; after its removal they are not.
    fs::write(&key, format!("{second}\n{first}\n"))?;
    let both_log = |text: &str| -> Result<bool> {
        let logs = ["one.log", "two.log"].map(|name| fs::read_to_string(folder.join(name)));
        Ok(logs.into_iter().collect::<std::io::Result<Vec<_>>>()?.iter().all(|log| log.contains(text)))
    };
    wait_for("the new key to be read", || both_log("reloaded changed files"))?;
    ensure!(status(&second_ui, &cookie)? == 200 && status(&first_ui, &cookie)? == 200, "the old key ended a session");
    fs::write(&key, format!("{second}\n"))?;
    wait_for("the old key to be removed", || {
        Ok(status(&second_ui, &cookie)? == 401 && status(&first_ui, &cookie)? == 401)
    })?;
    let next = format!("Cookie: {}", first_ui.sign_in()?);
    ensure!(status(&second_ui, &next)? == 200);
    // An invalid key leaves the current keys in use.
    fs::write(&key, "short")?;
    wait_for("the invalid key to be refused", || both_log("is too short: a key"))?;
    ensure!(status(&second_ui, &next)? == 200 && status(&first_ui, &next)? == 200);
    for process in [&mut one, &mut two] {
        ensure!(process.stop()?.success());
    }
    Ok(())
}

/// Through the UI, no header of a member affects the origin. Through the control plane, headers that affect the whole
/// origin are dropped.
fn member_headers_do_not_affect_the_origin(fleet: &Fleet, ui: &Ui, cookie: &str) -> Result<()> {
    let path = format!("GET {MEMBER}{PAGE}");
    let mut response = ui.send(&path, &ui.own_headers(&[cookie]), "")?;
    // The proxy knows the new member only when its watch of Clusters has reported it.
    wait_for("the member's page", || {
        response = ui.send(&path, &ui.own_headers(&[cookie]), "")?;
        Ok(response.status() == 200)
    })
    .with_context(|| format!("{}\n{}", response.head, response.body))?;
    ensure!(response.body.contains(DOCUMENT), "{}", response.body);
    for (name, value) in HOSTILE_HEADERS {
        ensure!(!response.values(name).contains(&value), "{name} reached the browser:\n{}", response.head);
    }
    let policy = response.values("content-security-policy");
    ensure!(policy.len() == 1 && policy[0].starts_with("default-src 'none'; sandbox;"), "{policy:?}");
    ensure!(response.values("x-content-type-options") == ["nosniff"], "{}", response.head);
    ensure!(
        response.values("content-type") == ["text/html"] && response.values("etag") == ["\"kept\""],
        "{}",
        response.head
    );

    let direct = RUNTIME.block_on(member::get_headers(fleet, &format!("{MEMBER}{PAGE}")))?;
    for name in ["set-cookie", "clear-site-data", "strict-transport-security", "access-control-allow-origin"] {
        ensure!(!direct.contains_key(name), "{name} passed the aggregated proxy: {direct:?}");
    }
    ensure!(direct.contains_key("location"), "{direct:?}");
    Ok(())
}

fn websockets_of_other_origins_are_refused(ui: &Ui, cookie: &str) -> Result<()> {
    let path = format!("GET {MEMBER}/api/v1/namespaces/default/pods/p/exec?command=sh");
    let own_origin = format!("http://{}", ui.address);
    let other_port = "http://127.0.0.1:1".to_owned();
    let rebound = "http://evil.example".to_owned();
    let cases = [
        (&own_origin, ui.address.as_str(), 101),
        (&other_port, &ui.address, 403),
        (&"https://evil.example".to_owned(), &ui.address, 403),
        (&"null".to_owned(), &ui.address, 403),
        (&rebound, "evil.example", 421),
    ];
    for (origin, host, expected) in cases {
        let headers = [
            format!("Host: {host}"),
            format!("Origin: {origin}"),
            cookie.to_owned(),
            "Connection: Upgrade".to_owned(),
            "Upgrade: websocket".to_owned(),
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==".to_owned(),
            "Sec-WebSocket-Version: 13".to_owned(),
            "Sec-WebSocket-Protocol: v5.channel.k8s.io".to_owned(),
        ];
        let headers =
            if expected == 101 { headers.to_vec() } else { [&headers[..], &["Connection: close".to_owned()]].concat() };
        let response = ui.send(&path, &headers, "")?;
        ensure!(response.status() == expected, "{origin} at {host}: {}\n{}", response.head, response.body);
        ensure!(response.values("set-cookie").is_empty(), "{}", response.head);
    }
    Ok(())
}

fn pages_of_other_sites_are_refused(ui: &Ui, cookie: &str) -> Result<()> {
    let body = json!({"token": ui.token}).to_string();
    let host = format!("Host: {}", ui.address);
    let lines = |lines: &[&str]| -> Vec<String> {
        let own = lines.iter().map(|line| (*line).to_owned());
        own.chain(["Connection: close".to_owned(), "Content-Type: application/json".to_owned()]).collect()
    };
    let cases = [
        ("POST /ui/session", lines(&[&host]), 403),
        ("POST /ui/session", lines(&[&host, "X-Crowsnest-Client: a", "Origin: https://evil.example"]), 403),
        ("POST /ui/session", lines(&[&host, "X-Crowsnest-Client: a", "Sec-Fetch-Site: cross-site"]), 403),
        ("POST /ui/session", lines(&["Host: evil.example", "X-Crowsnest-Client: a"]), 421),
        ("POST /ui/sign-in", lines(&[&host, "X-Crowsnest-Client: a", "Origin: http://127.0.0.1:1"]), 403),
        ("DELETE /ui/session", lines(&[&host, cookie, "X-Crowsnest-Client: a", "Origin: null"]), 403),
        ("GET /api/v1/namespaces", lines(&[&host, cookie]), 403),
        ("GET /", lines(&["Host: evil.example:7080"]), 421),
        ("GET http://evil.example/", lines(&[&host]), 421),
        ("GET /", lines(&[]), 421),
        ("GET /", lines(&[&host]), 200),
        ("GET /", lines(&["Host: localhost:9999"]), 200),
    ];
    for (target, headers, expected) in cases {
        let response = ui.send(target, &headers, &body)?;
        ensure!(response.status() == expected, "{target} {headers:?}: {}\n{}", response.head, response.body);
        ensure!(response.values("access-control-allow-origin").is_empty(), "{}", response.head);
        ensure!(expected == 200 || response.values("set-cookie").is_empty(), "{}", response.head);
    }
    // The session is unchanged.
    ensure!(ui.send("GET /ui/session", &ui.own_headers(&[cookie]), "")?.status() == 200);
    Ok(())
}

/// Thousands of forged cookies are refused, and the memory of the process does not grow.
fn forged_cookies_do_not_grow_memory(ui: &Ui, data: &Path) -> Result<()> {
    let flood = |count: usize| -> Result<()> {
        for n in 0..count {
            let forged = match n % 3 {
                0 => format!("Cookie: crowsnest-session=eyJhbGciOiJSUzI1NiJ9.{n}.x"),
                1 => format!("Cookie: crowsnest-identity={n:043}"),
                _ => format!("Cookie: crowsnest-session={n:0400}"),
            };
            let response = ui.send("GET /api/v1/secrets", &ui.own_headers(&[&forged]), "")?;
            ensure!(response.status() == 401, "{forged}: {}", response.head);
        }
        Ok(())
    };
    flood(300)?;
    // Stored cookies would increase the memory in every round; other work of the process does so only in some rounds.
    let mut least_growth = u64::MAX;
    for _ in 0..5 {
        let before = resident_memory(data)?;
        flood(3_000)?;
        least_growth = least_growth.min(resident_memory(data)?.saturating_sub(before));
        if least_growth < MAX_GROWTH {
            break;
        }
    }
    ensure!(least_growth < MAX_GROWTH, "memory grew by at least {least_growth} bytes in each round");
    // A cookie that occurs twice is not accepted.
    let cookie = ui.sign_in()?;
    let twice = format!("Cookie: crowsnest-session=planted; {cookie}");
    ensure!(ui.send("GET /ui/session", &ui.own_headers(&[&twice]), "")?.status() == 401);
    Ok(())
}

/// Resident memory in bytes of the process with this data directory.
fn resident_memory(data: &Path) -> Result<u64> {
    let data = data.to_str().context("the path is not UTF-8")?;
    for process in fs::read_dir("/proc")?.filter_map(std::result::Result::ok) {
        let Ok(line) = fs::read_to_string(process.path().join("cmdline")) else { continue };
        if !line.split('\0').any(|word| word == data) {
            continue;
        }
        let status = fs::read_to_string(process.path().join("status"))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        return Ok(resident.trim().trim_end_matches(" kB").parse::<u64>()? * 1024);
    }
    anyhow::bail!("no process of {data}")
}

fn a_copied_cookie_ends_with_its_session(ui: &Ui) -> Result<()> {
    let cookie = format!("Cookie: {}", ui.sign_in()?);
    ensure!(ui.send("GET /ui/session", &ui.own_headers(&[&cookie]), "")?.status() == 200);
    ensure!(ui.send("DELETE /ui/session", &ui.own_headers(&[&cookie]), "")?.status() == 200);
    ensure!(ui.send("GET /ui/session", &ui.own_headers(&[&cookie]), "")?.status() == 401);
    // A cookie with the token itself is not a session.
    let bare = format!("Cookie: crowsnest-session={}", ui.token);
    ensure!(ui.send("GET /ui/session", &ui.own_headers(&[&bare]), "")?.status() == 401);
    Ok(())
}

/// The control plane and the port of the aggregated APIs refuse TLS 1.0 and 1.1.
fn old_tls_is_refused(fleet: &Fleet) -> Result<()> {
    let server = fleet.server()?;
    let service = RUNTIME
        .block_on(member::get(fleet, "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.cluster.karmada.io"))?;
    let port = service["spec"]["service"]["port"].as_u64().context("the APIService has no port")?;
    for address in [server.trim_start_matches("https://").to_owned(), format!("127.0.0.1:{port}")] {
        for version in [0x01_u8, 0x02] {
            let alert = send_client_hello(&address, version)?;
            // An alert, fatal, protocol_version (RFC 5246, section 7.2).
            ensure!(alert.first() == Some(&0x15) && alert.get(5..7) == Some(&[2, 70][..]), "{address}: {alert:x?}");
        }
    }
    Ok(())
}

/// Sends a ClientHello of TLS 1.0 (`version` 1) or 1.1 (2); returns the response.
fn send_client_hello(address: &str, version: u8) -> Result<Vec<u8>> {
    let mut body = vec![3, version];
    body.extend([7; 32]);
    body.push(0);
    // TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA and TLS_RSA_WITH_AES_128_CBC_SHA; no compression.
    body.extend([0, 4, 0xc0, 0x09, 0x00, 0x2f, 1, 0]);
    // Extensions: supported_groups and ec_point_formats, signature_algorithms.
    let extensions = [0, 10, 0, 4, 0, 2, 0, 23, 0, 11, 0, 2, 1, 0, 0, 13, 0, 4, 0, 2, 4, 3];
    body.extend([0, extensions.len() as u8]);
    body.extend(extensions);
    let mut record = vec![0x16, 3, 1, 0, body.len() as u8 + 4, 1, 0, 0, body.len() as u8];
    record.extend(body);
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(&record)?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    Ok(response)
}

/// Other users of the machine can open no file or folder of the data directory, including keys and kubeconfigs.
fn data_is_readable_by_its_owner_only(data: &Path) -> Result<()> {
    let mode = |path: &Path| -> Result<u32> { Ok(fs::symlink_metadata(path)?.permissions().mode() & 0o777) };
    for folder in [data.to_owned(), data.join("kubeconfigs"), data.join("control-plane")] {
        ensure!(mode(&folder)? == 0o700, "{}: {:o}", folder.display(), mode(&folder)?);
    }
    let mut files = vec![data.join("ui-session-key")];
    files.extend(fs::read_dir(data.join("kubeconfigs"))?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?);
    ensure!(files.len() > 2, "{files:?}");
    let mut folders = vec![data.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let (path, kind) = {
                let entry = entry?;
                (entry.path(), entry.file_type()?)
            };
            if kind.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "key") {
                files.push(path);
            }
        }
    }
    for file in files {
        ensure!(mode(&file)? == 0o600, "{}: {:o}", file.display(), mode(&file)?);
    }
    Ok(())
}
