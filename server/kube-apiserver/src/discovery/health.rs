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

/// Checks of start hooks, which have completed when the server listens.
const START_HOOKS: [&str; 13] = [
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
    is_draining: AtomicBool,
}

impl Health {
    pub(super) fn new(store: Store) -> Self {
        Self { store, tasks: RwLock::default(), is_draining: AtomicBool::new(false) }
    }

    /// Makes the server unready if one of these tasks stops unexpectedly. Such a task is reported as a failed check;
    /// running tasks are not listed, because kube-apiserver has no such checks.
    pub fn watch_tasks(&self, tasks: Tasks) {
        self.tasks.write().push(tasks);
    }

    /// Makes the server unready during shutdown.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    /// Names and results of the checks of `/readyz`, or of the other endpoints.
    fn run_checks(&self, is_readiness: bool) -> Vec<(String, Result<(), String>)> {
        let check_store = || self.store.failure().map_or(Ok(()), Err);
        let ok = |name: &str| (name.to_owned(), Ok(()));
        let mut checks = vec![ok("ping"), ok("log"), ("etcd".to_owned(), check_store())];
        if is_readiness {
            checks.extend([("etcd-readiness".to_owned(), check_store()), ok("informer-sync")]);
        }
        checks.extend(START_HOOKS.map(ok));
        if is_readiness {
            let failed_tasks = self.tasks.read().iter().flat_map(Tasks::failures).collect::<Vec<_>>();
            checks.extend(
                failed_tasks
                    .into_iter()
                    .map(|name| (format!("task/{name}"), Err("the task stopped unexpectedly".to_owned()))),
            );
            let is_draining = self.is_draining.load(Ordering::Relaxed);
            checks.push(("shutdown".into(), if is_draining { Err("process is shutting down".into()) } else { Ok(()) }));
        }
        checks
    }

    /// The paths of all checks.
    pub(super) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        for endpoint in ["/healthz", "/livez", "/readyz"] {
            paths.push(endpoint.to_owned());
            let checks = self.run_checks(endpoint == "/readyz");
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
            for (name, result) in self.run_checks(kind == "readyz") {
                let value = u8::from(result.is_ok());
                out.push_str(&format!("kubernetes_healthcheck{{name={name:?},type={kind:?}}} {value}\n"));
            }
        }
        out
    }

    /// The response if the path is a health endpoint.
    pub(super) fn serve(&self, path: &str, query: Option<&str>) -> Option<Response> {
        let query = Query::parse(query);
        let rest = path.strip_prefix('/')?;
        let (endpoint, check) = rest.split_once('/').map_or((rest, None), |(endpoint, check)| (endpoint, Some(check)));
        if !["healthz", "livez", "readyz"].contains(&endpoint) {
            return None;
        }
        let checks = self.run_checks(endpoint == "readyz");
        if let Some(check) = check.filter(|check| !check.is_empty()) {
            let (_, result) = checks.into_iter().find(|(name, _)| name == check)?;
            return Some(match result {
                Ok(()) => respond::text(200, "ok"),
                Err(reason) => respond::text(500, format!("internal server error: {reason}\n")),
            });
        }
        let (is_healthy, lines) =
            report(endpoint, &checks, &query.all("exclude").map(str::to_owned).collect::<Vec<_>>());
        Some(match (is_healthy, query.has("verbose")) {
            (true, false) => respond::text(200, "ok"),
            (true, true) => respond::text(200, lines),
            (false, _) => respond::text(500, lines),
        })
    }
}

/// Overall result without the excluded checks, and the report with one line per check.
fn report(endpoint: &str, checks: &[(String, Result<(), String>)], excluded: &[String]) -> (bool, String) {
    let (mut is_healthy, mut lines) = (true, String::new());
    for (name, result) in checks {
        lines.push_str(&match result {
            _ if excluded.contains(name) => format!("[+]{name} excluded: ok\n"),
            Ok(()) => format!("[+]{name} ok\n"),
            Err(_) => {
                is_healthy = false;
                format!("[-]{name} failed: reason withheld\n")
            }
        });
    }
    let mut unknown: Vec<String> =
        excluded.iter().filter(|name| checks.iter().all(|(check, _)| check != *name)).cloned().collect();
    unknown.sort();
    unknown.dedup();
    if !unknown.is_empty() {
        let names: Vec<String> = unknown.iter().map(|name| format!("{name:?}")).collect();
        let names = names.join(",");
        lines.push_str(&format!("warn: some health checks cannot be excluded: no matches for {names}\n"));
    }
    lines.push_str(&format!("{endpoint} check {}\n", if is_healthy { "passed" } else { "failed" }));
    (is_healthy, lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_match_kube_apiserver() {
        let checks = |etcd: Result<(), String>| vec![("ping".to_owned(), Ok(())), ("etcd".to_owned(), etcd)];
        let (passing, failing) = (checks(Ok(())), checks(Err("disk full".into())));
        let cases: [(&[_], &[&str], bool, &str); 4] = [
            (&passing, &[], true, "[+]ping ok\n[+]etcd ok\nreadyz check passed\n"),
            (&failing, &[], false, "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n"),
            (&failing, &["etcd"], true, "[+]ping ok\n[+]etcd excluded: ok\nreadyz check passed\n"),
            (
                &passing,
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
