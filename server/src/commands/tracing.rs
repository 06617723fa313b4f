//! Flags of trace export; `crate::traces` sends the traces.

use std::path::PathBuf;

use clap::Args;
use url::Url;

/// Path of OTLP over HTTP below the receiver's URL.
const OTLP_PATH: &str = "v1/traces";

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Traces")]
pub(crate) struct TracingArgs {
    /// URL of an OTLP/HTTP receiver for traces, such as http://collector:4318; OTEL_EXPORTER_OTLP_HEADERS sets request
    /// headers, for example with a token [default: traces are disabled]
    #[arg(long, env = "CROWSNEST_TRACING_ENDPOINT", value_name = "URL", value_parser = parse_endpoint)]
    pub(crate) tracing_endpoint: Option<Url>,
    /// Number of requests and reconciles per million to trace, if the caller has not decided
    #[arg(long, env = "CROWSNEST_TRACING_SAMPLING_RATE_PER_MILLION", value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) tracing_sampling_rate_per_million: u32,
    /// CA file for the receiver's certificate [default: the system's]
    #[arg(long, env = "CROWSNEST_TRACING_CA_FILE", value_name = "FILE")]
    pub(crate) tracing_ca_file: Option<PathBuf>,
}

fn parse_endpoint(text: &str) -> Result<Url, String> {
    let mut url: Url = text
        .parse()
        .map_err(|error: url::ParseError| format!("{error}: expected a URL such as http://collector:4318"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("unsupported scheme {}: only OTLP over http and https is supported", url.scheme()));
    }
    // Credentials in the URL would be printed and logged.
    if !url.username().is_empty() || url.password().is_some() {
        return Err("the URL must not contain credentials; set them in OTEL_EXPORTER_OTLP_HEADERS".to_owned());
    }
    if url.path() == "/" {
        url.set_path(OTLP_PATH);
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("http://collector:4318", Ok("http://collector:4318/v1/traces"))]
    #[case("https://collector/", Ok("https://collector/v1/traces"))]
    #[case::of_a_tenant("https://collector/otlp/v1/traces?tenant=a", Ok("https://collector/otlp/v1/traces?tenant=a"))]
    #[case("collector:4317", Err("only OTLP over http and https"))]
    #[case("grpc://collector:4317", Err("only OTLP over http and https"))]
    #[case("/v1/traces", Err("such as http://collector:4318"))]
    #[case("https://me:open-sesame@collector", Err("OTEL_EXPORTER_OTLP_HEADERS"))]
    fn endpoints_are_validated(#[case] text: &str, #[case] expected: Result<&str, &str>) {
        match (parse_endpoint(text), expected) {
            (Ok(url), Ok(expected)) => assert_eq!(url.as_str(), expected),
            (Err(error), Err(expected)) => {
                assert!(error.contains(expected) && !error.contains("open-sesame"), "{error}");
            }
            (found, _) => panic!("{found:?}"),
        }
    }
}
