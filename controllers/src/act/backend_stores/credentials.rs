//! Reads the Secrets of a destination and sets up its client.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_index::export::of_client;
use crowsnest_index::opensearch::client::{
    Address, Authorization, Client, ClientCertificate, ClientError, ClientOptions, CredentialSource, Credentials,
    Secret,
};
use serde_json::Value;

use super::conditions::reason_of;
use crate::Error;
use crate::act::objects::{Objects, Resource, Target};
use crate::admission::backend_store::{Destination, SecretName};

/// Reason for which no client can be set up.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error("cannot read the Secret {name}: {source}")]
    Secret {
        name: SecretName,
        #[source]
        source: Box<Error>,
    },
    #[error("there is no Secret {0}")]
    NoSecret(SecretName),
    #[error("the Secret {name} has no {key}")]
    NoKey { name: SecretName, key: &'static str },
    #[error("{key} of the Secret {name} is not text")]
    NotText { name: SecretName, key: &'static str },
    #[error("{0}")]
    PlainText(String),
    #[error("{}", .0.chain())]
    Client(#[from] ClientError),
}

impl Unusable {
    /// Reason of the conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Secret { .. } | Self::NoSecret(_) | Self::NoKey { .. } | Self::NotText { .. } => "SecretUnreadable",
            Self::PlainText(_) => "AddressRefused",
            Self::Client(ClientError::LocalAddress { .. } | ClientError::Address { .. } | ClientError::NoHosts) => {
                "AddressRefused"
            }
            Self::Client(error) => reason_of(of_client(error)),
        }
    }
}

/// The credentials of a destination as they are now.
pub(super) async fn read(objects: &Objects, destination: &Destination) -> Result<Credentials, Unusable> {
    let mut credentials = Credentials::default();
    if let Some(name) = &destination.credentials {
        let secret = SecretData::read(objects, name).await?;
        // Karmada goes on without credentials if there is no username.
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

/// A client with these credentials. `local`: addresses of this host are allowed.
pub(super) async fn client(
    destination: &Destination,
    credentials: Credentials,
    local: bool,
) -> Result<Client, Unusable> {
    if let Some(reason) = destination.plain_text(local) {
        return Err(Unusable::PlainText(reason));
    }
    let hosts = Address::parse_all(destination.addresses.iter().map(String::as_str))?;
    let mut options = ClientOptions::new(hosts);
    options.credentials = CredentialSource::Fixed(credentials);
    options.local_addresses = local;
    Ok(Client::new(options).await?)
}

/// Values of a Secret.
struct SecretData<'n> {
    name: &'n SecretName,
    data: BTreeMap<String, Vec<u8>>,
}

impl<'n> SecretData<'n> {
    async fn read(objects: &Objects, name: &'n SecretName) -> Result<Self, Unusable> {
        let secrets = Resource::builtin("", "v1", "secrets", "Secret", true);
        let found = objects.get(Target::new(&secrets, &name.namespace, &name.name)).await;
        let found = found.map_err(|source| Unusable::Secret { name: name.clone(), source: Box::new(source) })?;
        let secret = found.ok_or_else(|| Unusable::NoSecret(name.clone()))?;
        let data = secret["data"].as_object().into_iter().flatten();
        let decoded = |(key, value): (&String, &Value)| Some((key.clone(), STANDARD.decode(value.as_str()?).ok()?));
        Ok(Self { name, data: data.filter_map(decoded).collect() })
    }

    fn text(&self, key: &'static str) -> Result<String, Unusable> {
        let value = self.data.get(key).ok_or_else(|| Unusable::NoKey { name: self.name.clone(), key })?;
        let text = std::str::from_utf8(value).map_err(|_| Unusable::NotText { name: self.name.clone(), key })?;
        // A line break at the end is an editor's.
        Ok(text.trim_end_matches(['\r', '\n']).to_owned())
    }
}
