//! `crowsnest token`: creates, lists and deletes the bootstrap tokens that authorize an agent to register its cluster,
//! as `karmadactl token` does.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail, ensure};
use clap::{Args, Subcommand};
use crowsnest_apimachinery::printers::human_duration;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use rand::Rng;
use ring::digest::{SHA256, digest};
use serde_json::json;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::clients::describe_cause;
use crate::columns;
use crate::connection::ConnectionArgs;
use crate::output::terminal;

const TOKEN_NAMESPACE: &str = "kube-system";
const SECRET_NAME_PREFIX: &str = "bootstrap-token-";
const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
/// Group whose members may request the certificate of an agent.
const AGENT_GROUP: &str = "system:bootstrappers:karmada:default-cluster-token";
const USAGES: [&str; 2] = ["signing", "authentication"];
const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const ID_LENGTH: usize = 6;
const SECRET_LENGTH: usize = 16;

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest token create --print-register-command",
    "crowsnest token create --ttl 2h --description 'the cluster in Oslo'",
    "crowsnest token list",
    "crowsnest token delete abcdef",
])]
pub struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Create a token and print it
    Create(CreateArgs),
    /// List the tokens with their remaining lifetimes
    List(ListArgs),
    /// Delete tokens by their ids
    Delete(DeleteArgs),
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// Lifetime, such as 2h or 90m; 0 means that the token does not expire
    #[arg(long, default_value = "24h", value_parser = parse_ttl, value_name = "DURATION")]
    ttl: jiff::SignedDuration,
    /// Usages of the token, separated by commas
    #[arg(long, value_delimiter = ',', default_values = USAGES, value_name = "USAGES")]
    usages: Vec<String>,
    /// Groups that the token authenticates as, separated by commas
    #[arg(long, value_delimiter = ',', default_value = AGENT_GROUP, value_name = "GROUPS")]
    groups: Vec<String>,
    /// Description of the token
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    description: String,
    /// Print the full `crowsnest register` command to register a cluster with the token
    #[arg(long)]
    print_register_command: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Print whole tokens instead of their ids
    #[arg(long)]
    show_secrets: bool,
    #[arg(long)]
    no_headers: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Debug, Args)]
struct DeleteArgs {
    /// Token ids, or whole tokens
    #[arg(required = true, value_name = "ID")]
    tokens: Vec<String>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

fn parse_ttl(text: &str) -> Result<jiff::SignedDuration, String> {
    if text == "0" {
        return Ok(jiff::SignedDuration::ZERO);
    }
    let span: jiff::SignedDuration =
        text.parse().map_err(|_| format!("invalid duration {text:?}: expected a value such as 2h or 90m"))?;
    if span.is_negative() { Err("the duration must not be negative".to_owned()) } else { Ok(span) }
}

pub(crate) async fn run(args: TokenArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        TokenCommand::Create(args) => create(args).await?,
        TokenCommand::List(args) => list(args).await?,
        TokenCommand::Delete(args) => delete(args).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn create(args: CreateArgs) -> anyhow::Result<()> {
    let config = args.connection.load_config().await?;
    let hash = args.print_register_command.then(|| ca_public_key_hash(&config)).transpose()?;
    let (id, secret) = (random_string(ID_LENGTH), random_string(SECRET_LENGTH));
    let server = config.cluster_url.to_string();
    let secrets: Api<Secret> = Api::namespaced(kube::Client::try_from(config)?, TOKEN_NAMESPACE);
    let object = args.secret(&id, &secret, Timestamp::now())?;
    let result = secrets.create(&PostParams::default(), &object).await;
    result.map_err(|error| anyhow!("cannot create the token: {}", describe_cause(&error)))?;
    let mut out = terminal::stdout();
    match hash {
        None => writeln!(out, "{id}.{secret}")?,
        Some(hash) => {
            let endpoint = server.trim_start_matches("https://").trim_end_matches('/');
            writeln!(out, "crowsnest register {endpoint} --token {id}.{secret} --discovery-token-ca-cert-hash {hash}")?;
        }
    }
    Ok(())
}

impl CreateArgs {
    fn secret(&self, id: &str, secret: &str, now: Timestamp) -> anyhow::Result<Secret> {
        let mut data = json!({"token-id": id, "token-secret": secret});
        for usage in &self.usages {
            ensure!(
                USAGES.contains(&usage.as_str()),
                "invalid usage {usage:?}; valid usages are {}",
                USAGES.join(", ")
            );
            data[format!("usage-bootstrap-{usage}")] = "true".into();
        }
        for group in &self.groups {
            ensure!(
                group.starts_with("system:bootstrappers:"),
                "invalid group {group:?}: must start with \"system:bootstrappers:\""
            );
        }
        data["auth-extra-groups"] = self.groups.join(",").into();
        if !self.description.is_empty() {
            data["description"] = self.description.as_str().into();
        }
        if !self.ttl.is_zero() {
            let until = now.checked_add(self.ttl).context("--ttl is too long")?;
            data["expiration"] = until.round(jiff::Unit::Second).unwrap_or(until).to_string().into();
        }
        let object = json!({"apiVersion": "v1", "kind": "Secret", "type": SECRET_TYPE,
            "metadata": {"name": format!("{SECRET_NAME_PREFIX}{id}"), "namespace": TOKEN_NAMESPACE}, "stringData": data});
        Ok(serde_json::from_value(object)?)
    }
}

/// A random string of lower-case letters and digits.
fn random_string(length: usize) -> String {
    let mut random = rand::rng();
    (0..length).map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())])).collect()
}

/// The hash of the public key of the control plane's CA, which the agent verifies (`--discovery-token-ca-cert-hash`).
fn ca_public_key_hash(config: &kube::Config) -> anyhow::Result<String> {
    let der = config.root_cert.iter().flatten().next();
    let der = der.context("cannot compute the CA certificate hash: the kubeconfig has no certificate authority")?;
    let (_, certificate) =
        X509Certificate::from_der(der).context("cannot parse the kubeconfig's certificate authority")?;
    let hash = digest(&SHA256, certificate.tbs_certificate.subject_pki.raw);
    Ok(format!("sha256:{}", hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>()))
}

async fn list(args: ListArgs) -> anyhow::Result<()> {
    let secrets: Api<Secret> = Api::namespaced(args.connection.client().await?, TOKEN_NAMESPACE);
    let found = secrets.list(&ListParams::default().fields(&format!("type={SECRET_TYPE}"))).await;
    let mut found = found.map_err(|error| anyhow!("cannot list tokens: {}", describe_cause(&error)))?.items;
    found.retain(|secret| secret.type_.as_deref() == Some(SECRET_TYPE));
    found.sort_by_key(ResourceExt::name_any);
    if found.is_empty() {
        return Ok(writeln!(terminal::stderr(), "No tokens found; create one with `crowsnest token create`")?);
    }
    let head = ["TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "GROUPS"].map(str::to_owned).to_vec();
    let rows = found.iter().map(|secret| row(secret, args.show_secrets, Timestamp::now()));
    let rows: Vec<Vec<String>> = (!args.no_headers).then_some(head).into_iter().chain(rows).collect();
    Ok(columns::write(&mut terminal::stdout(), &rows)?)
}

fn row(secret: &Secret, show_secret: bool, now: Timestamp) -> Vec<String> {
    let field = |name: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(name));
        bytes.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned()).filter(|text| !text.is_empty())
    };
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "<none>".to_owned());
    let id = or_none(field("token-id"));
    let token = if show_secret { format!("{id}.{}", field("token-secret").unwrap_or_default()) } else { id };
    let remaining = match field("expiration").map(|text| text.parse::<Timestamp>()) {
        None => "<forever>".to_owned(),
        Some(Ok(until)) if until <= now => "<expired>".to_owned(),
        Some(Ok(until)) => human_duration(until.as_second() - now.as_second()),
        Some(Err(_)) => "<invalid>".to_owned(),
    };
    let has_usage = |usage: &&&str| field(&format!("usage-bootstrap-{usage}")).as_deref() == Some("true");
    let usages: Vec<&str> = USAGES.iter().filter(has_usage).copied().collect();
    let usages = Some(usages.join(",")).filter(|usages| !usages.is_empty());
    let rest = [field("expiration"), usages, field("description"), field("auth-extra-groups")].map(or_none);
    [token, remaining].into_iter().chain(rest).collect()
}

async fn delete(args: DeleteArgs) -> anyhow::Result<()> {
    let secrets: Api<Secret> = Api::namespaced(args.connection.client().await?, TOKEN_NAMESPACE);
    for token in &args.tokens {
        let id = token.split_once('.').map_or(token.as_str(), |(id, _)| id);
        if id.len() != ID_LENGTH || !id.bytes().all(|byte| ALPHABET.contains(&byte)) {
            bail!("invalid token id {id:?}; `crowsnest token list` lists the ids");
        }
        let result = secrets.delete(&format!("{SECRET_NAME_PREFIX}{id}"), &DeleteParams::default()).await;
        match result {
            Ok(_) => writeln!(io::stdout(), "bootstrap token {id:?} deleted")?,
            Err(kube::Error::Api(status)) if status.code == 404 => {
                bail!("bootstrap token {id:?} not found; `crowsnest token list` lists the tokens")
            }
            Err(error) => bail!("cannot delete bootstrap token {id:?}: {}", describe_cause(&error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parse_args;

    fn parse_secret(line: &str) -> Result<serde_json::Value, String> {
        let TokenCommand::Create(args) = parse_args::<TokenArgs>(line)?.command else {
            return Err("no create command".to_owned());
        };
        let secret = args.secret("abcdef", "0123456789abcdef", "2026-01-01T00:00:00.5Z".parse().unwrap());
        let secret = secret.map_err(|error| error.to_string())?;
        Ok(json!(secret.string_data))
    }

    #[rstest::rstest]
    #[case("create", json!({"token-id": "abcdef", "token-secret": "0123456789abcdef", "expiration": "2026-01-02T00:00:01Z",
        "auth-extra-groups": AGENT_GROUP, "usage-bootstrap-signing": "true", "usage-bootstrap-authentication": "true"}))]
    #[case("create --ttl 0 --usages signing --groups system:bootstrappers:a --description x", json!({"token-id": "abcdef",
        "token-secret": "0123456789abcdef", "auth-extra-groups": "system:bootstrappers:a", "usage-bootstrap-signing": "true",
        "description": "x"}))]
    fn tokens_become_secrets(#[case] line: &str, #[case] expected: serde_json::Value) {
        assert_eq!(parse_secret(line), Ok(expected));
    }

    #[rstest::rstest]
    #[case("create --groups system:masters", "must start with")]
    #[case("create --usages reading", "invalid usage \"reading\"")]
    #[case("create --ttl soon", "invalid duration \"soon\"")]
    fn invalid_arguments_are_rejected(#[case] line: &str, #[case] expected: &str) {
        let error = parse_secret(line).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn random_strings_have_the_token_format() {
        let secret = random_string(SECRET_LENGTH);
        assert!(secret.len() == SECRET_LENGTH && secret.bytes().all(|byte| ALPHABET.contains(&byte)), "{secret}");
        assert_ne!(secret, random_string(SECRET_LENGTH));
    }

    #[rstest::rstest]
    #[case(false, "2026-01-01T02:00:00Z", "abcdef 120m 2026-01-01T02:00:00Z signing <none> g")]
    #[case(true, "2025-01-01T02:00:00Z", "abcdef.xyz <expired> 2025-01-01T02:00:00Z signing <none> g")]
    fn tokens_become_rows(#[case] show_secret: bool, #[case] until: &str, #[case] expected: &str) {
        use base64::Engine;
        let encoded = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let secret = json!({"metadata": {"name": "bootstrap-token-abcdef"}, "type": SECRET_TYPE, "data": {
            "token-id": encoded("abcdef"), "token-secret": encoded("xyz"), "expiration": encoded(until),
            "usage-bootstrap-signing": encoded("true"), "auth-extra-groups": encoded("g")}});
        let secret: Secret = serde_json::from_value(secret).unwrap();
        assert_eq!(row(&secret, show_secret, "2026-01-01T00:00:00Z".parse().unwrap()).join(" "), expected);
    }
}
