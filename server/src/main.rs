//! The `crowsnest` binary: parses the command line, sets up logging and the async runtime, runs one command and returns
//! its exit code.

use std::process::ExitCode;

use crowsnest_component_base::spans::SPAN_TARGET;
use traces::Traces;

mod commands;
mod traces;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The provider is installed once; an error would mean that it is set already.
    let _ = crypto_provider().install_default();
    match commands::line::complete::handle_request() {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => return crowsnest_cli::fail(&error),
    }
    let command = commands::Cli::from_process_arguments();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return crowsnest_cli::fail(&anyhow::Error::new(error).context("cannot start the async runtime")),
    };
    let traces = command.traces().map(|(args, name)| Traces::start(args, name, runtime.handle())).transpose();
    let traces = match traces {
        Ok(traces) => traces.flatten(),
        Err(error) => return crowsnest_cli::fail(&error),
    };
    let json = command.logs_json();
    init_logging(command.verbosity(), json, traces.as_ref());
    let result = runtime.block_on(commands::run(command));
    if let Some(traces) = traces {
        traces.flush();
    }
    // Blocking work that survived the drain, such as a hung DNS lookup, must not delay the exit.
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    let code = result
        .unwrap_or_else(|error| if json { crowsnest_cli::fail_logged(&error) } else { crowsnest_cli::fail(&error) });
    crowsnest_cli::pager::end();
    code
}

/// Rustls with ring. Outgoing connections prefer AES-128, as Go's clients do: it is sufficient and makes proxied
/// traffic cheaper. For incoming connections the client's preference decides.
fn crypto_provider() -> rustls::crypto::CryptoProvider {
    use rustls::CipherSuite::{TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256};
    let aes_128_suites = [
        rustls::CipherSuite::TLS13_AES_128_GCM_SHA256,
        TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    ];
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| !aes_128_suites.contains(&suite.suite()));
    provider
}

/// Filters of warnings that an operator cannot act on: kube's client logs failed connections that the caller reports anyway, and
/// tantivy logs terms that are too long for its index, and merges of segments that were replaced during the merge. Tantivy's other
/// warnings concern the disk.
const QUIET_FILTERS: &str =
    "kube_client::client::builder=off,tantivy::postings=error,tantivy::indexer::segment_manager=error";

/// Filter of the logs: `requested`, or that for a number of `-v` flags. `requested` can override the quiet filters.
fn log_filter(verbosity: u8, requested: Option<&str>) -> tracing_subscriber::EnvFilter {
    let default = match verbosity {
        0 => format!("warn,{QUIET_FILTERS}"),
        1 => format!("info,{QUIET_FILTERS},sqlx=warn,tantivy=warn"),
        2 => "debug,hyper=info,h2=info,rustls=info,sqlx=info,tantivy=info".to_owned(),
        _ => "trace".to_owned(),
    };
    let requested = requested.filter(|filter| !filter.is_empty()).map(|filter| format!("{QUIET_FILTERS},{filter}"));
    requested
        .and_then(|filter| tracing_subscriber::EnvFilter::try_new(filter).ok())
        .unwrap_or_else(|| tracing_subscriber::EnvFilter::new(default))
}

fn init_logging(verbosity: u8, json: bool, traces: Option<&Traces>) {
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;
    use tracing_subscriber::{Layer, fmt};
    let mut filter = log_filter(verbosity, std::env::var("CROWSNEST_LOG").ok().as_deref());
    // Spans are not logged; without an exporter none is created.
    if let Ok(no_spans) = format!("{SPAN_TARGET}=off").parse() {
        filter = filter.add_directive(no_spans);
    }
    if json {
        // JSON logs must not contain plain text.
        std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "a thread panicked")));
    }
    let Some(traces) = traces else {
        let lines = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(true);
        return match json {
            true => lines.json().flatten_event(true).init(),
            false => lines.init(),
        };
    };
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(true);
    let lines = match json {
        true => lines.json().flatten_event(true).boxed(),
        false => lines.boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(filter)).with(traces.layer()).init();
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use tracing::Level;
    use tracing_subscriber::layer::SubscriberExt;

    use super::log_filter;

    const LONG_TERM: &str = "tantivy::postings::postings_writer";
    const FAILED_MERGE: &str = "tantivy::indexer::segment_updater";

    /// `tracing::enabled` needs constants.
    fn is_enabled(target: &str, level: Level) -> bool {
        match (target, level) {
            (LONG_TERM, Level::WARN) => tracing::enabled!(target: LONG_TERM, Level::WARN),
            (LONG_TERM, Level::ERROR) => tracing::enabled!(target: LONG_TERM, Level::ERROR),
            (FAILED_MERGE, Level::WARN) => tracing::enabled!(target: FAILED_MERGE, Level::WARN),
            (FAILED_MERGE, Level::INFO) => tracing::enabled!(target: FAILED_MERGE, Level::INFO),
            other => panic!("no event {other:?}"),
        }
    }

    #[rstest]
    #[case::long_term(LONG_TERM, Level::WARN, [false, false, true, true])]
    #[case::error(LONG_TERM, Level::ERROR, [true, true, true, true])]
    #[case::failed_merge(FAILED_MERGE, Level::WARN, [true, true, true, true])]
    #[case::progress(FAILED_MERGE, Level::INFO, [false, false, true, true])]
    fn warnings_without_remedy_are_not_logged(#[case] target: &str, #[case] level: Level, #[case] expected: [bool; 4]) {
        let enabled = [0, 1, 2, 3].map(|verbosity| is_logged(verbosity, None, target, level));
        assert_eq!(enabled, expected);
    }

    #[rstest]
    #[case::level("info", false)]
    #[case::target("info,tantivy::postings=warn", true)]
    #[case::other_target("info,tantivy=debug", false)]
    #[case::empty("", false)]
    #[case::invalid("tantivy::postings=loud", false)]
    fn a_requested_filter_may_name_quiet_targets(#[case] requested: &str, #[case] expected: bool) {
        assert_eq!(is_logged(0, Some(requested), LONG_TERM, Level::WARN), expected);
        assert!(is_logged(0, Some(requested), LONG_TERM, Level::ERROR));
    }

    fn is_logged(verbosity: u8, requested: Option<&str>, target: &str, level: Level) -> bool {
        let subscriber = tracing_subscriber::registry().with(log_filter(verbosity, requested));
        tracing::subscriber::with_default(subscriber, || is_enabled(target, level))
    }
}
