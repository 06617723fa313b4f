use crate::customized::declarative::ScriptError;
use crate::customized::webhook::WebhookError;
use crate::default::thirdparty::RuleError;

/// Failure of an interpreter operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("ResourceInterpreterCustomization {customization}: {source}")]
    Script {
        customization: String,
        #[source]
        source: ScriptError,
    },
    #[error("Internal error occurred: failed calling webhook {webhook:?}: {source}")]
    Webhook {
        webhook: String,
        #[source]
        source: Box<WebhookError>,
    },
    #[error("{api_version} {kind}: {source}")]
    ThirdParty {
        api_version: &'static str,
        kind: &'static str,
        #[source]
        source: RuleError,
    },
}
