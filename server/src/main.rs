//! The `crowsnest` binary: reads the command line, sets up logging and the runtime, runs one command, returns its exit code.

use std::process::ExitCode;

mod agent;
mod aggregated;
mod cli;
mod estimator;
mod install;
mod peers;
mod reload;
mod roles;
mod serving;
mod trust;
mod ui;
mod up;
mod webhook;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Nobody else has installed one yet; a second one would be of no matter.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match cli::complete::answered() {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => return cli::fail(&error),
    }
    let command = cli::Cli::read();
    init_logging(command.verbosity());
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

fn init_logging(verbosity: u8) {
    use tracing_subscriber::EnvFilter;
    // What kube's client logs of a failed connection, its caller is told and says once.
    let default = match verbosity {
        0 => "warn,kube_client::client::builder=off",
        1 => "info,kube_client::client::builder=off,sqlx=warn,tantivy=warn",
        2 => "debug,hyper=info,h2=info,rustls=info,sqlx=info,tantivy=info",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env("CROWSNEST_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(true).init();
}
