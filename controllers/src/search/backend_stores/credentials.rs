//! Reads the Secrets of a destination and creates its client.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_index::export::classify_client_error;
use crowsnest_search::opensearch::client::{
    Address, Authorization, Client, ClientCertificate, ClientError, ClientOptions, CredentialSource, Credentials,
    Secret,
};
use serde_json::Value;

use crate::Error;
use crate::runtime::dynamic_client::{DynamicClient, Resource, Target};
use crate::search::backend_stores::conditions::reason_of;
use crowsnest_admission::backend_store::{Destination, SecretName};

/// Reason why no client can be created.
#[derive(Debug, thiserror::Error)]
pub(in crate::search) enum ClientSetupError {
    #[error("cannot read the Secret {name}: {source}")]
    Secret {
        name: SecretName,
        #[source]
        source: Box<Error>,
    },
    #[error("Secret {0} does not exist")]
    NoSecret(SecretName),
    #[error("Secret {name} has no key {key}")]
    NoKey { name: SecretName, key: &'static str },
    #[error("{key} of Secret {name} is not valid UTF-8")]
    NotText { name: SecretName, key: &'static str },
    #[error("{0}")]
    PlainText(String),
    #[error("{}", .0.chain())]
    Client(#[from] ClientError),
}

impl ClientSetupError {
    /// Reason of the conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Secret { .. } | Self::NoSecret(_) | Self::NoKey { .. } | Self::NotText { .. } => "SecretUnreadable",
            Self::PlainText(_) => "AddressRefused",
            Self::Client(ClientError::LocalAddress { .. } | ClientError::Address { .. } | ClientError::NoHosts) => {
                "AddressRefused"
            }
            Self::Client(error) => reason_of(classify_client_error(error)),
        }
    }
}

/// Reads the current credentials of a destination from its Secrets.
pub(super) async fn read_credentials(
    objects: &DynamicClient,
    destination: &Destination,
) -> Result<Credentials, ClientSetupError> {
    let mut credentials = Credentials::default();
    if let Some(name) = &destination.credentials {
        let secret = SecretData::read(objects, name).await?;
        // Karmada continues without credentials if there is no username.
        credentials.authorization = Authorization::Basic {
            username: secret.text("username")?,
            password: Secret::new(secret.text("password")?),
        };
    }
    if let Some(name) = &destination.ca {
        credentials.ca = Some(SecretData::read(objects, name).await?.text("ca.crt")?);
    }
    if let Some(name) = &destination.certificate {
        let secret = SecretData::read(objects, name).await?;
        credentials.certificate =
            Some(ClientCertificate { chain: secret.text("tls.crt")?, key: Secret::new(secret.text("tls.key")?) });
    }
    Ok(credentials)
}

/// Creates a client with these credentials. `allow_local` allows addresses of this host.
pub(super) async fn create_client(
    destination: &Destination,
    credentials: Credentials,
    allow_local: bool,
) -> Result<Client, ClientSetupError> {
    if let Some(reason) = destination.plaintext_problem(allow_local) {
        return Err(ClientSetupError::PlainText(reason));
    }
    let hosts = Address::parse_all(destination.addresses.iter().map(String::as_str))?;
    let mut options = ClientOptions::new(hosts);
    options.credentials = CredentialSource::Fixed(credentials);
    options.allow_local_addresses = allow_local;
    Ok(Client::new(options).await?)
}

/// Values of a Secret.
pub(in crate::search) struct SecretData<'n> {
    name: &'n SecretName,
    data: BTreeMap<String, Vec<u8>>,
}

impl<'n> SecretData<'n> {
    pub async fn read(objects: &DynamicClient, name: &'n SecretName) -> Result<Self, ClientSetupError> {
        let secrets = Resource::builtin("", "v1", "secrets", "Secret", true);
        let found = objects.get(Target::new(&secrets, &name.namespace, &name.name)).await;
        let found =
            found.map_err(|source| ClientSetupError::Secret { name: name.clone(), source: Box::new(source) })?;
        let secret = found.ok_or_else(|| ClientSetupError::NoSecret(name.clone()))?;
        let data = secret["data"].as_object().into_iter().flatten();
        let decoded = |(key, value): (&String, &Value)| Some((key.clone(), STANDARD.decode(value.as_str()?).ok()?));
        Ok(Self { name, data: data.filter_map(decoded).collect() })
    }

    pub fn text(&self, key: &'static str) -> Result<String, ClientSetupError> {
        let value = self.data.get(key).ok_or_else(|| ClientSetupError::NoKey { name: self.name.clone(), key })?;
        let text =
            std::str::from_utf8(value).map_err(|_| ClientSetupError::NotText { name: self.name.clone(), key })?;
        // Editors append a line break.
        Ok(text.trim_end_matches(['\r', '\n']).to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use kube::client::Body;
    use rstest::rstest;
    use serde_json::json;
    use std::convert::Infallible;
    use std::sync::Arc;

    /// A control plane with these Secrets of the namespace `a`, by name.
    fn control_plane(secrets: Value) -> DynamicClient {
        let secrets = Arc::new(secrets);
        let service = tower::service_fn(move |request: Request<Body>| {
            let secrets = Arc::clone(&secrets);
            async move {
                let name = request.uri().path().strip_prefix("/api/v1/namespaces/a/secrets/").unwrap_or_default();
                let (status, body) = match secrets.get(name) {
                    Some(data) => (200, json!({"apiVersion": "v1", "kind": "Secret", "data": data})),
                    None => (
                        404,
                        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound",
                        "message": "not found", "code": 404}),
                    ),
                };
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
            }
        });
        DynamicClient::new(kube::Client::new(service, "default"))
    }

    fn encoded(keys: &[(&str, &str)]) -> Value {
        keys.iter().map(|(key, value)| ((*key).to_owned(), json!(STANDARD.encode(value)))).collect()
    }

    fn destination() -> Destination {
        let secret = |name: &str| Some(SecretName { namespace: "a".to_owned(), name: name.to_owned() });
        Destination {
            addresses: vec!["https://10.0.0.1:9200".to_owned()],
            credentials: secret("engine"),
            ca: secret("ca"),
            certificate: secret("certificate"),
        }
    }

    fn secrets() -> Value {
        json!({
            "engine": encoded(&[("username", "crow"), ("password", "nest\n")]),
            "ca": encoded(&[("ca.crt", "authorities")]),
            "certificate": encoded(&[("tls.crt", "chain"), ("tls.key", "key")]),
        })
    }

    #[tokio::test]
    async fn credentials_are_read_from_secrets() {
        let read = read_credentials(&control_plane(secrets()), &destination()).await.unwrap();
        let expected = Credentials {
            authorization: Authorization::Basic { username: "crow".to_owned(), password: Secret::new("nest") },
            certificate: Some(ClientCertificate { chain: "chain".to_owned(), key: Secret::new("key") }),
            ca: Some("authorities".to_owned()),
        };
        assert_eq!(read, expected);
        let without_secrets = Destination { credentials: None, ca: None, certificate: None, ..destination() };
        assert_eq!(
            super::read_credentials(&control_plane(json!({})), &without_secrets).await.unwrap(),
            Credentials::default()
        );
    }

    #[rstest]
    #[case::no_secret("engine", json!(null), "Secret a/engine does not exist")]
    #[case::no_password("engine", encoded(&[("username", "crow")]), "Secret a/engine has no key password")]
    #[case::no_authorities("ca", json!({}), "Secret a/ca has no key ca.crt")]
    #[case::no_key("certificate", encoded(&[("tls.crt", "chain")]), "Secret a/certificate has no key tls.key")]
    #[case::no_text("ca", json!({"ca.crt": "/w=="}), "ca.crt of Secret a/ca is not valid UTF-8")]
    #[tokio::test]
    async fn invalid_secrets_are_reported(#[case] name: &str, #[case] data: Value, #[case] expected: &str) {
        let mut secrets = secrets();
        match data {
            Value::Null => drop(secrets.as_object_mut().unwrap().remove(name)),
            data => secrets[name] = data,
        }
        let error = read_credentials(&control_plane(secrets), &destination()).await.unwrap_err();
        assert_eq!((error.to_string().as_str(), error.reason()), (expected, "SecretUnreadable"));
    }

    #[rstest]
    #[case::https("https://10.0.0.1:9200", false, None)]
    #[case::http("http://10.0.0.1:9200", true, Some("AddressRefused"))]
    #[case::local("https://127.0.0.1:9200", false, Some("AddressRefused"))]
    #[case::allowed_local_http("http://127.0.0.1:9200", true, None)]
    #[case::password_in_the_address("https://u:p@10.0.0.1", true, Some("AddressRefused"))]
    #[tokio::test]
    async fn addresses_are_checked_again(
        #[case] address: &str,
        #[case] allow_local: bool,
        #[case] expected: Option<&'static str>,
    ) {
        // Another test may have installed the crypto provider.
        drop(rustls::crypto::ring::default_provider().install_default());
        let destination =
            Destination { addresses: vec![address.to_owned()], ca: None, certificate: None, ..destination() };
        let reason =
            create_client(&destination, Credentials::default(), allow_local).await.err().map(|error| error.reason());
        assert_eq!(reason, expected);
    }
}
