//! The `crowsnest` binary: reads the command line, sets up logging and the runtime, runs one command, returns its exit code.

use std::process::ExitCode;

mod agent;
mod aggregated;
mod cli;
mod credentials;
mod doctor;
mod estimator;
mod install;
mod leading;
mod migrate;
mod peers;
mod reload;
mod roles;
mod serve;
mod serving;
mod steering;
mod trust;
mod ui;
mod up;
mod webhook;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Nobody else has installed one yet; a second one would be of no matter.
    let _ = cryptography().install_default();
    match cli::complete::answered() {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => return cli::fail(&error),
    }
    let command = cli::Cli::read();
    init_logging(command.verbosity(), command.logs_json());
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return cli::fail(&anyhow::Error::new(error).context("starting the async runtime")),
    };
    let outcome = runtime.block_on(cli::run(command));
    // Blocking work that outlived its drain (a hung DNS look-up) must not hold the exit.
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    let code = outcome.unwrap_or_else(|error| cli::fail(&error));
    cli::pager::end();
    code
}

/// Rustls with ring. What we dial is asked for the shorter keys of AES first, as Go's clients do: they are enough, and what is
/// carried to members and back costs less. Whoever dials us chooses.
fn cryptography() -> rustls::crypto::CryptoProvider {
    use rustls::CipherSuite::{TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256};
    let short = [
        rustls::CipherSuite::TLS13_AES_128_GCM_SHA256,
        TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    ];
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| !short.contains(&suite.suite()));
    provider
}

fn init_logging(verbosity: u8, json: bool) {
    use tracing_subscriber::EnvFilter;
    // What kube's client logs of a failed connection, its caller is told and says once.
    let default = match verbosity {
        0 => "warn,kube_client::client::builder=off",
        1 => "info,kube_client::client::builder=off,sqlx=warn,tantivy=warn",
        2 => "debug,hyper=info,h2=info,rustls=info,sqlx=info,tantivy=info",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env("CROWSNEST_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(true);
    match json {
        true => lines.json().init(),
        false => lines.init(),
    }
}
