//! A temporary Postgres server for tests, with a database for each test.
//!
//! Concurrent tests share a server, which stops after the last of them. The binaries are searched for
//! in `CROWSNEST_POSTGRES` (a folder), on the path and at Debian's location. Without them, a test reports that and is
//! skipped; with `CI=true`, that is a failure.

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

const USER: &str = "crowsnest";

static RUNNING: Mutex<Weak<Server>> = Mutex::new(Weak::new());
static DATABASES: AtomicU32 = AtomicU32::new(0);

/// A running server; stopped when dropped.
struct Server {
    process: Child,
    port: u16,
    directory: tempfile::TempDir,
}

/// A separate database for one test.
pub struct Database {
    server: Arc<Server>,
    name: String,
}

impl Database {
    /// A new database; None if no server is available.
    pub async fn create() -> Option<Self> {
        let Some(binaries) = binaries() else {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "Postgres is not installed: run .ci/tools");
            eprintln!("skipped: Postgres is not installed (Debian package postgresql)");
            return None;
        };
        let server = {
            let mut running = RUNNING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            match running.upgrade() {
                Some(server) => server,
                None => {
                    let server = Arc::new(Server::start(&binaries));
                    *running = Arc::downgrade(&server);
                    server
                }
            }
        };
        let name = format!("test{}", DATABASES.fetch_add(1, Ordering::Relaxed));
        let mut connection = server.connect().await;
        sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        Some(Self { server, name })
    }

    pub fn url(&self) -> String {
        self.url_at(self.port())
    }

    /// The URL with another port of this host, for a proxy.
    pub fn url_at(&self, port: u16) -> String {
        format!("postgres://{USER}@127.0.0.1:{port}/{}", self.name)
    }

    pub fn port(&self) -> u16 {
        self.server.port
    }

    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url()).await.unwrap()
    }
}

impl Server {
    fn start(binaries: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let owner = owner();
        if let Some(owner) = owner {
            run(Command::new("chown").arg(owner).arg(directory.path()));
        }
        let data = directory.path().join("data");
        let mut initdb = as_owner(owner, &binaries.join("initdb"));
        initdb.args(["--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C.UTF-8", "--username", USER]);
        run(initdb.arg("--pgdata").arg(&data));
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let mut postgres = as_owner(owner, &binaries.join("postgres"));
        postgres.arg("-D").arg(&data).args(["-p", &port.to_string(), "-k"]).arg(directory.path());
        for setting in [
            "listen_addresses=127.0.0.1",
            "fsync=off",
            "synchronous_commit=off",
            "full_page_writes=off",
            "max_connections=200",
            "shared_buffers=32MB",
        ] {
            postgres.args(["-c", setting]);
        }
        let process = postgres.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let server = Self { process, port, directory };
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut ready = Command::new(binaries.join("pg_isready"));
        ready.args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()]).current_dir("/");
        while !ready.status().unwrap().success() {
            let log = || std::fs::read_to_string(server.directory.path().join("log")).unwrap();
            assert!(Instant::now() < deadline, "Postgres did not start: {}", log());
            std::thread::yield_now();
        }
        server
    }

    async fn connect(&self) -> PgConnection {
        PgConnection::connect(&format!("postgres://{USER}@127.0.0.1:{}/postgres", self.port)).await.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGQUIT: immediate shutdown, because no data is kept.
        let quit = Command::new("kill").args(["-QUIT", &self.process.id().to_string()]).status();
        if !quit.is_ok_and(|status| status.success()) {
            eprintln!("the test's Postgres (process {}) could not be stopped", self.process.id());
        }
        if let Err(error) = self.process.wait() {
            eprintln!("cannot wait for the end of the test's Postgres: {error}");
        }
    }
}

fn binaries() -> Option<PathBuf> {
    let chosen = std::env::var_os("CROWSNEST_POSTGRES").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut debian: Vec<PathBuf> = debian.map(|version| version.path().join("bin")).collect();
    debian.sort();
    let folders = chosen.into_iter().chain(debian.into_iter().rev()).chain(std::env::split_paths(&path));
    folders
        .into_iter()
        .find(|folder| ["initdb", "postgres", "pg_isready"].iter().all(|name| folder.join(name).exists()))
}

/// User to run the server as, because Postgres refuses to run as root; None for the current user.
fn owner() -> Option<&'static str> {
    let id = |arguments: &[&str]| Command::new("id").args(arguments).stderr(Stdio::null()).output().unwrap();
    if String::from_utf8_lossy(&id(&["-u"]).stdout).trim() != "0" {
        return None;
    }
    Some(if id(&["-u", "postgres"]).status.success() { "postgres" } else { "nobody" })
}

fn as_owner(owner: Option<&str>, program: &Path) -> Command {
    let Some(owner) = owner else { return Command::new(program) };
    let mut command = Command::new("setpriv");
    command.args(["--reuid", owner, "--clear-groups", "--inh-caps=-all"]).arg(program);
    command
}

fn run(command: &mut Command) {
    let done = command.current_dir("/").output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}
