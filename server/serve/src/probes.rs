//! Probe endpoints /healthz, /livez and /readyz, and /metrics for Prometheus. Plain HTTP without information about
//! objects.

use crowsnest_apimachinery::status::ApiError;
use crowsnest_process::reply::StatusResponse;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use crowsnest_component_base::metrics::Series;
use crowsnest_component_base::tasks::Tasks;
use http::StatusCode;
use tokio::sync::watch;

use crate::connectivity::Connectivity;
use crowsnest_aggregated::request::middleware::ApiMiddleware;
use crowsnest_aggregated::search_crowsnest_io::cache;
use crowsnest_runtime::roles::Roles;

/// State of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    /// Starting, with the step it waits for.
    Starting(String),
    Running,
    /// Open requests are answered, but new ones should go elsewhere.
    Stopping,
}

#[derive(Clone)]
pub(super) struct Probes {
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) connectivity: watch::Receiver<Connectivity>,
    pub(super) servers: Tasks,
    pub(super) roles: Arc<Roles>,
    /// True if an enabled role needs the cache, so that the process is ready only when `roles` is initialized.
    pub(super) requires_cache: bool,
    pub(super) middleware: ApiMiddleware,
}

impl Probes {
    /// Reasons why requests should be sent to another replica; empty if the process is ready.
    fn problems(&self) -> Vec<String> {
        let mut problems = match &*self.phase.borrow() {
            Phase::Starting(step) => return vec![format!("starting: {step}")],
            Phase::Stopping => vec!["stopping".to_owned()],
            Phase::Running => Vec::new(),
        };
        problems.extend(self.servers.failures());
        problems.extend(self.connectivity.borrow().problem());
        if self.requires_cache {
            problems.extend(self.roles.problems());
        }
        problems.extend(self.middleware.problems());
        problems
    }

    /// Tasks that ended and are not restarted.
    fn failed_tasks(&self) -> Vec<String> {
        let mut failed = self.servers.failures();
        failed.extend(self.roles.get().into_iter().flat_map(|running| running.failed_tasks()));
        failed
    }
}

pub(super) fn health(probes: Probes) -> Router {
    Router::new()
        .route("/healthz", get(serve_liveness))
        .route("/livez", get(serve_liveness))
        .route("/readyz", get(serve_readiness))
        .with_state(probes)
}

pub(super) fn metrics(probes: Probes) -> Router {
    Router::new().route("/metrics", get(serve_metrics)).with_state(probes)
}

/// Liveness fails only for tasks that stopped unexpectedly, because a restart fixes nothing else.
async fn serve_liveness(State(probes): State<Probes>) -> (StatusCode, String) {
    probe_response(probes.failed_tasks())
}

async fn serve_readiness(State(probes): State<Probes>) -> (StatusCode, String) {
    probe_response(probes.problems())
}

fn probe_response(problems: Vec<String>) -> (StatusCode, String) {
    match problems.is_empty() {
        true => (StatusCode::OK, "ok".to_owned()),
        false => (StatusCode::SERVICE_UNAVAILABLE, problems.join("\n")),
    }
}

async fn serve_metrics(State(probes): State<Probes>) -> Response {
    let ready = Series {
        name: "crowsnest_ready",
        help: "Whether /readyz returns ok.",
        is_counter: false,
        labels: Vec::new(),
        value: u64::from(probes.problems().is_empty()),
    };
    let series = probes.middleware.series().chain([ready]);
    let metrics = match probes.roles.get() {
        Some(running) => cache::metrics(running, series, &probes.middleware.metrics).await,
        None => cache::metrics_without_cache(series, &probes.middleware.metrics),
    };
    metrics.unwrap_or_else(ApiError::into_response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_aggregated::request::limits::Limits;
    use crowsnest_apiserver::audit::Auditor;
    use crowsnest_process::reload::ReloadCounters;
    use crowsnest_runtime::metrics::ProcessMetrics;
    use rstest::rstest;
    use std::time::Duration;

    fn probes(phase: Phase, connectivity: Connectivity, requires_cache: bool, servers: Tasks) -> Probes {
        let middleware = ApiMiddleware {
            auditor: Auditor::default(),
            limits: Limits::new(1, 1),
            reloads: Arc::new(ReloadCounters::default()),
            metrics: Arc::new(ProcessMetrics::new()),
            timeout: Duration::from_secs(1),
        };
        let ((_phase_sender, phase), (_connectivity_sender, connectivity)) =
            (watch::channel(phase), watch::channel(connectivity));
        Probes { phase, connectivity, servers, roles: Arc::default(), requires_cache, middleware }
    }

    #[rstest]
    #[case(Phase::Starting("the control plane".to_owned()), Connectivity::Lost, true, "starting: the control plane")]
    #[case::no_cache_required(Phase::Running, Connectivity::Responding, false, "")]
    #[case::the_cache_has_not_been_opened(Phase::Running, Connectivity::Responding, true, "starting")]
    #[case::control_plane_does_not_respond(
        Phase::Running,
        Connectivity::Unresponsive,
        false,
        "the control plane does not respond"
    )]
    #[case(Phase::Stopping, Connectivity::Responding, false, "stopping")]
    fn readiness_reports_the_problem(
        #[case] phase: Phase,
        #[case] connectivity: Connectivity,
        #[case] requires_cache: bool,
        #[case] expected: &str,
    ) {
        assert_eq!(probes(phase, connectivity, requires_cache, Tasks::default()).problems().join("\n"), expected);
    }

    #[tokio::test]
    async fn dead_tasks_fail_both_probes() {
        let servers = Tasks::default();
        servers.spawn_until_stop("--listen", std::future::ready(()));
        servers.tracker().close();
        servers.tracker().wait().await;
        let probes = probes(Phase::Running, Connectivity::Responding, false, servers);
        let expected = (StatusCode::SERVICE_UNAVAILABLE, "--listen: the task stopped unexpectedly".to_owned());
        assert_eq!(serve_liveness(State(probes.clone())).await, expected);
        assert_eq!(serve_readiness(State(probes)).await, expected);
    }
}
