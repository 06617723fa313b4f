//! `crowsnest mcp`: serves the Model Context Protocol over standard input and output, with the identity of a kubeconfig.

use std::process::ExitCode;

use clap::Args;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_component_base::client_errors::api_error;
use crowsnest_mcp::{Api, ApiRequest, ApiResponse};
use futures::future::BoxFuture;
use kube::client::Body;

use crate::connection::ConnectionArgs;

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest mcp                                  with the kubeconfig of the running `crowsnest up`",
    "crowsnest mcp --kubeconfig viewer.kubeconfig   with an account that has few permissions",
])]
pub struct McpArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) async fn run(args: McpArgs) -> anyhow::Result<ExitCode> {
    let api = ControlPlaneApi(args.connection.client().await?);
    crowsnest_mcp::stdio::serve(&api, tokio::io::stdin(), tokio::io::stdout()).await?;
    Ok(ExitCode::SUCCESS)
}

/// Sends requests to the aggregated APIs as the user of the kubeconfig.
struct ControlPlaneApi(kube::Client);

impl Api for ControlPlaneApi {
    fn send(&self, request: ApiRequest) -> BoxFuture<'_, Result<ApiResponse, ApiError>> {
        Box::pin(async move {
            let response = self.0.send(request.to_http::<Body>()?).await.map_err(api_error)?;
            ApiResponse::read(response).await
        })
    }
}
