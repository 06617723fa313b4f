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
    let traces = command.traces().map(|(args, what)| Traces::start(args, what, runtime.handle())).transpose();
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

fn init_logging(verbosity: u8, json: bool, traces: Option<&Traces>) {
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;
    use tracing_subscriber::{EnvFilter, Layer, fmt};
    // kube's client logs failed connections that the caller reports anyway.
    let default = match verbosity {
        0 => "warn,kube_client::client::builder=off",
        1 => "info,kube_client::client::builder=off,sqlx=warn,tantivy=warn",
        2 => "debug,hyper=info,h2=info,rustls=info,sqlx=info,tantivy=info",
        _ => "trace",
    };
    let mut filter = EnvFilter::try_from_env("CROWSNEST_LOG").unwrap_or_else(|_| EnvFilter::new(default));
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
