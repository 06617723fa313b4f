//! `/healthz`, `/livez`, `/readyz`: named checks, each also on its own path, all of them with `?verbose`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use crate::http::{Response, respond};
use crate::registry::options::Query;
use crate::storage::Store;

/// A named check: `Err` says what is wrong.
pub type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// See the module.
pub struct Health {
    store: Store,
    extra: RwLock<Vec<(String, Check)>>,
    draining: AtomicBool,
}

impl Health {
    pub(super) fn new(store: Store) -> Self {
        Self { store, extra: RwLock::default(), draining: AtomicBool::new(false) }
    }

    /// Adds a readiness check.
    pub fn add(&self, name: &str, check: Check) {
        self.extra.write().push((name.to_owned(), check));
    }

    /// Makes the server unready, for a shutdown.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    fn checks(&self, readiness: bool) -> Vec<(String, Result<(), String>)> {
        let mut checks = vec![
            ("ping".to_owned(), Ok(())),
            ("log".to_owned(), Ok(())),
            ("etcd".to_owned(), self.store.failure().map_or(Ok(()), Err)),
        ];
        if readiness {
            checks.extend(self.extra.read().iter().map(|(name, check)| (name.clone(), check())));
            let draining = self.draining.load(Ordering::Relaxed);
            checks.push(("shutdown".into(), if draining { Err("process is shutting down".into()) } else { Ok(()) }));
        }
        checks
    }

    /// The answer when the path is one of health's.
    pub(super) fn serve(&self, path: &str, query: Option<&str>) -> Option<Response> {
        let query = Query::parse(query);
        let rest = path.strip_prefix('/')?;
        let (endpoint, one) = rest.split_once('/').map_or((rest, None), |(endpoint, one)| (endpoint, Some(one)));
        if !["healthz", "livez", "readyz"].contains(&endpoint) {
            return None;
        }
        let excluded = query.all("exclude");
        let checks = self.checks(endpoint != "livez");
        if let Some(one) = one.filter(|one| !one.is_empty()) {
            let (_, result) = checks.into_iter().find(|(name, _)| name == one)?;
            return Some(match result {
                Ok(()) => respond::text(200, "ok"),
                Err(why) => respond::text(500, format!("internal server error: {why}\n")),
            });
        }
        let checks: Vec<_> = checks.into_iter().filter(|(name, _)| !excluded.contains(name)).collect();
        let healthy = checks.iter().all(|(_, result)| result.is_ok());
        if healthy && !query.has("verbose") {
            return Some(respond::text(200, "ok"));
        }
        let mut lines = String::new();
        for (name, result) in &checks {
            match result {
                Ok(()) => lines.push_str(&format!("[+]{name} ok\n")),
                Err(_) => lines.push_str(&format!("[-]{name} failed: reason withheld\n")),
            }
        }
        lines.push_str(&format!("{endpoint} check {}\n", if healthy { "passed" } else { "failed" }));
        Some(respond::text(if healthy { 200 } else { 500 }, lines))
    }
}
