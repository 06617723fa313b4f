//! `/healthz`, `/livez`, `/readyz`: named checks, each also at its own path, all of them with `?verbose`.
//!
//! The checks have kube-apiserver's names. Start hooks without a counterpart here (priority and fairness, identity
//! leases) are omitted.

use std::sync::atomic::{AtomicBool, Ordering};

use crowsnest_apimachinery::request::Query;
use crowsnest_component_base::tasks::Tasks;
use crowsnest_registry::storage::Store;
use parking_lot::RwLock;

use crate::http::{Response, respond};

/// Start hooks that have completed before the server listens.
const STARTED: [&str; 13] = [
    "poststarthook/start-apiserver-admission-initializer",
    "poststarthook/generic-apiserver-start-informers",
    "poststarthook/start-apiextensions-controllers",
    "poststarthook/crd-informer-synced",
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/start-cluster-authentication-info-controller",
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/bootstrap-controller",
    "poststarthook/apiservice-registration-controller",
    "poststarthook/apiservice-discovery-controller",
    "poststarthook/kube-apiserver-autoregistration",
    "autoregister-completion",
];

/// Health checks of a server.
pub struct Health {
    store: Store,
    tasks: RwLock<Vec<Tasks>>,
    draining: AtomicBool,
}

impl Health {
    pub(super) fn new(store: Store) -> Self {
        Self { store, tasks: RwLock::default(), draining: AtomicBool::new(false) }
    }

    /// Makes the server unready if one of these tasks stops unexpectedly. Such a task is reported as a failed check;
    /// running tasks are not listed, because kube-apiserver has no such checks.
    pub fn watch_tasks(&self, tasks: Tasks) {
        self.tasks.write().push(tasks);
    }

    /// Makes the server unready during shutdown.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    fn checks(&self, readiness: bool) -> Vec<(String, Result<(), String>)> {
        let store = || self.store.failure().map_or(Ok(()), Err);
        let ok = |name: &str| (name.to_owned(), Ok(()));
        let mut checks = vec![ok("ping"), ok("log"), ("etcd".to_owned(), store())];
        if readiness {
            checks.extend([("etcd-readiness".to_owned(), store()), ok("informer-sync")]);
        }
        checks.extend(STARTED.map(ok));
        if readiness {
            let dead = self.tasks.read().iter().flat_map(Tasks::dead).collect::<Vec<_>>();
            checks.extend(
                dead.into_iter().map(|what| (format!("task/{what}"), Err("the task stopped unexpectedly".to_owned()))),
            );
            let draining = self.draining.load(Ordering::Relaxed);
            checks.push(("shutdown".into(), if draining { Err("process is shutting down".into()) } else { Ok(()) }));
        }
        checks
    }

    /// The paths of all checks.
    pub(super) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        for endpoint in ["/healthz", "/livez", "/readyz"] {
            paths.push(endpoint.to_owned());
            let checks = self.checks(endpoint == "/readyz");
            paths.extend(checks.into_iter().map(|(name, _)| format!("{endpoint}/{name}")));
        }
        paths
    }

    /// Current results of all checks as metrics.
    pub(super) fn metrics(&self) -> String {
        let mut out = String::from(
            "# HELP kubernetes_healthcheck [STABLE] This metric records the result of a single healthcheck.\n# TYPE kubernetes_healthcheck gauge\n",
        );
        for kind in ["healthz", "livez", "readyz"] {
            for (name, result) in self.checks(kind == "readyz") {
                let well = u8::from(result.is_ok());
                out.push_str(&format!("kubernetes_healthcheck{{name={name:?},type={kind:?}}} {well}\n"));
            }
        }
        out
    }

    /// The response if the path is a health endpoint.
    pub(super) fn serve(&self, path: &str, query: Option<&str>) -> Option<Response> {
        let query = Query::parse(query);
        let rest = path.strip_prefix('/')?;
        let (endpoint, one) = rest.split_once('/').map_or((rest, None), |(endpoint, one)| (endpoint, Some(one)));
        if !["healthz", "livez", "readyz"].contains(&endpoint) {
            return None;
        }
        let checks = self.checks(endpoint == "readyz");
        if let Some(one) = one.filter(|one| !one.is_empty()) {
            let (_, result) = checks.into_iter().find(|(name, _)| name == one)?;
            return Some(match result {
                Ok(()) => respond::text(200, "ok"),
                Err(why) => respond::text(500, format!("internal server error: {why}\n")),
            });
        }
        let (healthy, lines) = report(endpoint, &checks, &query.all("exclude").map(str::to_owned).collect::<Vec<_>>());
        Some(match (healthy, query.has("verbose")) {
            (true, false) => respond::text(200, "ok"),
            (true, true) => respond::text(200, lines),
            (false, _) => respond::text(500, lines),
        })
    }
}

/// Overall result without the excluded checks, and the report.
fn report(endpoint: &str, checks: &[(String, Result<(), String>)], excluded: &[String]) -> (bool, String) {
    let (mut healthy, mut lines) = (true, String::new());
    for (name, result) in checks {
        lines.push_str(&match result {
            _ if excluded.contains(name) => format!("[+]{name} excluded: ok\n"),
            Ok(()) => format!("[+]{name} ok\n"),
            Err(_) => {
                healthy = false;
                format!("[-]{name} failed: reason withheld\n")
            }
        });
    }
    let mut unknown: Vec<String> =
        excluded.iter().filter(|name| checks.iter().all(|(known, _)| known != *name)).cloned().collect();
    unknown.sort();
    unknown.dedup();
    if !unknown.is_empty() {
        let names: Vec<String> = unknown.iter().map(|name| format!("{name:?}")).collect();
        let names = names.join(",");
        lines.push_str(&format!("warn: some health checks cannot be excluded: no matches for {names}\n"));
    }
    lines.push_str(&format!("{endpoint} check {}\n", if healthy { "passed" } else { "failed" }));
    (healthy, lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_match_kube_apiserver() {
        let checks = |etcd: Result<(), String>| vec![("ping".to_owned(), Ok(())), ("etcd".to_owned(), etcd)];
        let (well, broken) = (checks(Ok(())), checks(Err("disk full".into())));
        let cases: [(&[_], &[&str], bool, &str); 4] = [
            (&well, &[], true, "[+]ping ok\n[+]etcd ok\nreadyz check passed\n"),
            (&broken, &[], false, "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n"),
            (&broken, &["etcd"], true, "[+]ping ok\n[+]etcd excluded: ok\nreadyz check passed\n"),
            (
                &well,
                &["b", "a", "a"],
                true,
                "[+]ping ok\n[+]etcd ok\nwarn: some health checks cannot be excluded: no matches for \"a\",\"b\"\nreadyz check passed\n",
            ),
        ];
        for (checks, excluded, healthy, lines) in cases {
            let excluded: Vec<String> = excluded.iter().map(|&name| name.into()).collect();
            assert_eq!(report("readyz", checks, &excluded), (healthy, lines.to_owned()));
        }
    }
}
