//! Signing in with OpenID Connect, in the UI and at the control plane's API, with a small but real provider.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, run_browser_script, wait_for};
use http::Method;
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenReview};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

mod browser;
mod provider;

use browser::Browser;
use provider::{CLIENT, Fault, Provider, SECRET};

static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    crate::use_ring();
    tokio::runtime::Runtime::new().expect("a runtime")
});

/// A fleet with an identity provider.
struct TestEnv {
    fleet: Fleet,
    provider: Provider,
    ca: String,
    ui: String,
}

impl TestEnv {
    fn start(folder: &Path) -> Result<Self> {
        let (provider, ca) = RUNTIME.block_on(Provider::start())?;
        let write = |name: &str, text: &str| -> Result<String> {
            let path = folder.join(name);
            fs::write(&path, text)?;
            Ok(path.to_str().context("the path is not UTF-8")?.to_owned())
        };
        let (ca_file, secret_file) = (write("ca.crt", &ca)?, write("secret", &format!("{SECRET}\n"))?);
        let issuer = provider.issuer();
        let args = [
            "--no-members",
            "--oidc-issuer-url",
            &issuer,
            "--oidc-client-id",
            CLIENT,
            "--oidc-client-secret-file",
            &secret_file,
            "--oidc-ca-file",
            &ca_file,
            "--oidc-signing-algs",
            "ES256",
            "--oidc-username-claim",
            "preferred_username",
            "--oidc-username-prefix",
            "oidc:",
            "--oidc-groups-claim",
            "groups",
            "--oidc-groups-prefix",
            "oidc:",
            "--oidc-scopes",
            "groups,offline_access",
        ];
        let fleet = Fleet::start(&folder.join("data"), &args)?;
        let ui = fleet.ui_url.split("/#").next().unwrap_or_default().to_owned();
        provider.register(&format!("{ui}/ui/oidc/callback"));
        RUNTIME.block_on(grant_view_to_crew(&fleet))?;
        Ok(Self { fleet, provider, ca, ui })
    }

    fn browser(&self) -> Result<Browser> {
        Browser::new(&self.ui, &self.ca)
    }

    /// Signs in as Alice with a new browser.
    async fn sign_in_alice(&self) -> Result<Browser> {
        let mut browser = self.browser()?;
        let page = browser.open("/ui/oidc/login").await?;
        ensure!(page.status == 200 && page.url == format!("{}/", self.ui), "{page:?}");
        Ok(browser)
    }
}

async fn config(fleet: &Fleet) -> Result<kube::Config> {
    let kubeconfig = kube::config::Kubeconfig::read_from(fleet.kubeconfig("cp"))?;
    Ok(kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default()).await?)
}

async fn admin_client(fleet: &Fleet) -> Result<kube::Client> {
    Ok(kube::Client::try_from(config(fleet).await?)?)
}

async fn grant_view_to_crew(fleet: &Fleet) -> Result<()> {
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "crew", "namespace": "default"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "oidc:crew"}],
    }))?;
    Api::namespaced(admin_client(fleet).await?, "default").create(&PostParams::default(), &binding).await?;
    Ok(())
}

#[test]
fn users_sign_in_at_their_provider() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let env = TestEnv::start(dir.path())?;
    let result = RUNTIME.block_on(async {
        check_sign_in(&env).await?;
        check_key_rotation(&env).await?;
        check_id_tokens(&env).await?;
        check_assistants(&env).await?;
        check_invalid_responses(&env).await?;
        check_renewal(&env).await?;
        check_sign_out(&env).await
    });
    result.and_then(|()| check_pages(&env)).with_context(|| env.fleet.log())?;
    let log = fs::read_to_string(env.fleet.data_dir.with_extension("log"))?;
    ensure!(!env.provider.issued_tokens().iter().any(|token| log.contains(token)), "a token is in the log");
    ensure!(env.fleet.stop()?.success());
    Ok(())
}

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The session acts as the signed-in user, with this user's permissions only.
async fn check_sign_in(env: &TestEnv) -> Result<()> {
    let mut browser = env.browser()?;
    let (_, methods) = browser.send(Method::GET, "/ui/sign-in").await?;
    ensure!(methods["oidc"] == json!({"name": "127.0.0.1", "login": format!("{}/ui/oidc/login", env.ui)}), "{methods}");
    ensure!(browser.send(Method::GET, "/ui/session").await?.0 == 401);

    let page = browser.open("/ui/oidc/login?return=%2Fsearch%3Fq%3Dkind%253Apod").await?;
    ensure!(page.status == 200 && page.url == format!("{}/search?q=kind%3Apod", env.ui), "{page:?}");
    let (_, session) = browser.send(Method::GET, "/ui/session").await?;
    ensure!(session == json!({"user": "oidc:alice", "groups": ["oidc:crew", "system:authenticated"]}), "{session}");
    // The session has the user's own permissions.
    let (status, list) = browser.send(Method::GET, CONFIG_MAPS).await?;
    ensure!(status == 200 && list["kind"] == "ConfigMapList", "{list}");
    let (status, refused) = browser.send(Method::GET, "/api/v1/namespaces/default/secrets").await?;
    ensure!(
        status == 403 && refused["message"].as_str().is_some_and(|m| m.contains("User \"oidc:alice\"")),
        "{refused}"
    );
    // Tokens are not accessible to scripts, histories or other sites.
    let texts = [browser.visited.clone(), browser.set_cookies.clone()].concat();
    ensure!(
        !texts.iter().any(|text| env.provider.issued_tokens().iter().any(|token| text.contains(token))),
        "{texts:?}"
    );
    ensure!(
        browser.set_cookies.iter().all(|cookie| cookie.contains("; HttpOnly; SameSite=")),
        "{:?}",
        browser.set_cookies
    );
    // Redirects to other addresses are refused.
    let page = env.browser()?.open("/ui/oidc/login?return=%2F%2Fevil.example.com").await?;
    ensure!(page.url == format!("{}/", env.ui), "{page:?}");
    Ok(())
}

/// The provider's new keys are fetched, at a limited rate.
async fn check_key_rotation(env: &TestEnv) -> Result<()> {
    env.provider.rotate();
    let requests_before = env.provider.key_requests();
    env.sign_in_alice().await?;
    ensure!(env.provider.key_requests() == requests_before + 1);
    for _ in 0..20 {
        let refused = authenticated_user(env, &env.provider.id_token(Fault::UnknownKey)).await;
        ensure!(refused.is_err(), "{refused:?}");
    }
    let requests_since = env.provider.key_requests() - requests_before;
    ensure!(requests_since < 5, "keys were requested {requests_since} times");
    Ok(())
}

/// The user that the control plane authenticates by a bearer token.
async fn authenticated_user(env: &TestEnv, token: &str) -> Result<Value> {
    let mut config = config(&env.fleet).await?;
    config.auth_info = kube::config::AuthInfo { token: Some(token.to_owned().into()), ..Default::default() };
    let reviews: Api<SelfSubjectReview> = Api::all(kube::Client::try_from(config)?);
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
    Ok(serde_json::to_value(review.status.and_then(|status| status.user_info))?)
}

/// Tokens of a login plugin are accepted; a TokenReview returns the same user.
async fn check_id_tokens(env: &TestEnv) -> Result<()> {
    let alice = json!({"username": "oidc:alice", "groups": ["oidc:crew", "system:authenticated"]});
    let user = authenticated_user(env, &env.provider.id_token(Fault::None)).await?;
    ensure!(user == alice, "{user}");
    let reviews: Api<TokenReview> = Api::all(admin_client(&env.fleet).await?);
    let review = async |fault: Fault| -> Result<Value> {
        let request = serde_json::from_value(json!({"spec": {"token": env.provider.id_token(fault)}}))?;
        let reviewed = reviews.create(&PostParams::default(), &request).await?;
        Ok(serde_json::to_value(reviewed.status)?)
    };
    let valid = review(Fault::None).await?;
    ensure!(valid["authenticated"] == true && valid["user"] == alice, "{valid}");
    let cases = [
        (Fault::Expired, "oidc: verify token: token is expired (Token Expiry: "),
        (Fault::NotYet, "oidc: verify token: current time "),
        (Fault::Audience, "oidc: verify token: expected audience \"crowsnest\" got [\"another\"]"),
        (Fault::UnknownKey, "oidc: verify token: failed to verify signature: the issuer publishes no key \"key-0\""),
        (Fault::Signature, "oidc: verify token: failed to verify signature: failed to verify id token signature"),
        (
            Fault::Unsigned,
            "oidc: verify token: id token signed with unsupported algorithm, expected [\"ES256\"] got \"none\"",
        ),
        (Fault::Groups, "oidc: parse groups claim \"groups\""),
        (Fault::IssuerClaim, "invalid bearer token"),
    ];
    for (fault, expected) in cases {
        let refused = review(fault).await?;
        let error = refused["error"].as_str().unwrap_or_default();
        ensure!(refused["authenticated"] != true && error.contains(expected), "{fault:?}: {refused}");
    }
    Ok(())
}

/// Assistants without a valid token are referred to the issuer (RFC 9728), whose ID tokens are accepted.
async fn check_assistants(env: &TestEnv) -> Result<()> {
    let (client, url) = (reqwest::Client::new(), format!("{}/mcp", env.ui));
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let post = || client.post(&url).header("content-type", "application/json").body(ping);
    let metadata = format!("{}/.well-known/oauth-protected-resource/mcp", env.ui);
    for refused in [post(), post().bearer_auth(env.provider.id_token(Fault::Audience))] {
        let response = refused.send().await?;
        let challenge =
            response.headers().get("www-authenticate").context("the response has no challenge")?.to_str()?;
        ensure!(
            response.status() == 401 && challenge == format!("Bearer resource_metadata=\"{metadata}\""),
            "{challenge}"
        );
    }
    let document: Value = serde_json::from_str(&reqwest::get(&metadata).await?.text().await?)?;
    let issuers = json!([env.provider.issuer()]);
    ensure!(document["resource"] == url && document["authorization_servers"] == issuers, "{document}");
    let response = post().bearer_auth(env.provider.id_token(Fault::None)).send().await?;
    ensure!(response.status() == 200, "{response:?}");
    Ok(())
}

/// Invalid responses and tokens of the provider are refused with an error page.
async fn check_invalid_responses(env: &TestEnv) -> Result<()> {
    let cases = [
        (Fault::Denied, 403, "The identity provider refused: access_denied: &lt;b&gt;not you&lt;/b&gt;"),
        (Fault::State, 400, "its state differs"),
        (Fault::Issuer, 400, "This response is from https://another.example.com"),
        (Fault::Challenge, 502, "the issuer returned an error: invalid_grant: invalid request"),
        (Fault::NoIdToken, 502, "returned no id_token"),
        (Fault::Nonce, 401, "its nonce differs"),
        (Fault::Audience, 401, "expected audience"),
        (Fault::IssuerClaim, 401, "id token issued by a different provider"),
        (Fault::Expired, 401, "token is expired"),
        (Fault::UnknownKey, 401, "the issuer publishes no key &quot;key-0&quot;"),
        (Fault::Signature, 401, "failed to verify id token signature"),
        (Fault::Unsigned, 401, "unsupported algorithm"),
        (Fault::Groups, 401, "parse groups claim"),
    ];
    for (fault, status, expected) in cases {
        let mut browser = env.browser()?;
        env.provider.set_fault(fault);
        let page = browser.open("/ui/oidc/login?return=%2Fsearch%3Fq%3Da").await?;
        env.provider.set_fault(Fault::None);
        ensure!(page.status == status && page.text.contains(expected), "{fault:?}: {page:?}");
        ensure!(page.text.contains("href=\"/ui/oidc/login?return=%2Fsearch%3Fq%3Da\""), "{page:?}");
        ensure!(browser.send(Method::GET, "/ui/session").await?.0 == 401, "{fault:?}");
        // The same browser can retry.
        ensure!(browser.open("/ui/oidc/login").await?.status == 200, "{fault:?}");
    }
    // A callback that this browser did not request, and one that has been used.
    let mut alice = env.sign_in_alice().await?;
    let callback = alice.visited.iter().find(|url| url.contains("code=")).context("no redirect with a code")?.clone();
    for browser in [&mut env.browser()?, &mut alice] {
        let page = browser.open(&callback).await?;
        ensure!(page.status == 400 && page.text.contains("has not started a sign-in here"), "{page:?}");
    }
    Ok(())
}

/// Sessions are renewed with refresh tokens and end if that fails.
async fn check_renewal(env: &TestEnv) -> Result<()> {
    // Tokens with a short lifetime are renewed for each request.
    env.provider.set_lifetime(5);
    let mut browser = env.sign_in_alice().await?;
    let renewals_before = env.provider.renewals();
    let requests = (0..8).map(|_| {
        let mut browser = browser.clone();
        async move { browser.send(Method::GET, CONFIG_MAPS).await }
    });
    for body in futures::future::join_all(requests).await {
        let (status, body) = body?;
        ensure!(status == 200, "{body}");
    }
    ensure!(env.provider.renewals() > renewals_before);
    // Tokens with a long lifetime are not renewed.
    env.provider.set_lifetime(3600);
    ensure!(browser.send(Method::GET, "/ui/session").await?.0 == 200);
    let renewals_before = env.provider.renewals();
    ensure!(browser.send(Method::GET, "/ui/session").await?.0 == 200);
    ensure!(env.provider.renewals() == renewals_before);
    // The provider ends a session, or returns a token of another user.
    env.provider.set_lifetime(5);
    for (fault, expected) in [
        (Fault::None, "your session is no longer renewed: the issuer returned an error: invalid_grant"),
        (Fault::Subject, "the issuer renewed it with another user"),
        (Fault::NoIdToken, "the issuer renewed it without an id_token"),
        (Fault::Expired, "token is expired"),
    ] {
        let mut browser = env.sign_in_alice().await?;
        match fault {
            Fault::None => env.provider.invalidate_refresh_tokens(),
            fault => env.provider.set_fault(fault),
        }
        let (status, ended) = browser.send(Method::GET, "/ui/session").await?;
        env.provider.set_fault(Fault::None);
        let message = ended["message"].as_str().unwrap_or_default();
        ensure!(
            status == 401 && message.contains(expected) && message.ends_with("; sign in again"),
            "{fault:?}: {ended}"
        );
        let (_, response) = browser.send(Method::GET, CONFIG_MAPS).await?;
        ensure!(response["message"] == "your session has ended; sign in again", "{response}");
    }
    env.provider.set_lifetime(3600);
    Ok(())
}

/// Signing out ends the session here and at the provider.
async fn check_sign_out(env: &TestEnv) -> Result<()> {
    let mut browser = env.sign_in_alice().await?;
    let mut stolen = browser.clone();
    let (status, ended) = browser.send(Method::DELETE, "/ui/session").await?;
    let logout_url = format!("{}/logout?client_id={CLIENT}", env.provider.issuer());
    ensure!(status == 200 && ended["endSession"] == logout_url.as_str(), "{ended}");
    ensure!(browser.send(Method::GET, "/ui/session").await?.1["message"] == "Unauthorized");
    ensure!(stolen.send(Method::GET, "/ui/session").await?.0 == 401);
    let last = env.provider.issued_tokens().iter().rev().find(|token| !token.contains('.')).cloned();
    ensure!(env.provider.revoked_tokens().last() == last.as_ref(), "{:?}", env.provider.revoked_tokens());
    ensure!(browser.open(&logout_url).await?.text == "You are signed out.");
    // A navigation from another site sends no session cookie or lacks the header that forms cannot set, and is refused.
    let mut browser = env.sign_in_alice().await?;
    ensure!(browser.open("/ui/session").await?.status == 403);
    browser.drop_cookies();
    ensure!(browser.send(Method::GET, "/ui/session").await?.0 == 401);
    Ok(())
}

/// Signs in with a real browser: pages redirect to the provider and back.
fn check_pages(env: &TestEnv) -> Result<()> {
    // Tokens with a short lifetime are renewed for each request, without interaction.
    env.provider.set_lifetime(9);
    let renewals_before = env.provider.renewals();
    if run_browser_script("oidc", &[env.ui.as_ref(), env.provider.issuer().as_ref()], &[])?.is_none() {
        return Ok(());
    }
    ensure!(env.provider.renewals() > renewals_before, "the pages' session was never renewed");
    Ok(())
}

/// An unavailable provider prevents neither the start nor sign-in with a token.
#[test]
fn an_unavailable_provider_is_reported() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let unavailable = "https://127.0.0.1:9/realms/fleet";
    let args = ["--no-members", "--oidc-issuer-url", unavailable, "--oidc-client-id", CLIENT];
    let fleet = Fleet::start(&dir.path().join("data"), &args)?;
    let (ui, token) = fleet.ui_url.split_once("/#token=").context("the UI's address has no token")?;
    let warning = format!("sign-in with {unavailable} is not available yet");
    wait_for("the warning", || Ok(fs::read_to_string(fleet.data_dir.with_extension("log"))?.contains(&warning)))?;
    RUNTIME.block_on(async {
        let page = reqwest::get(format!("{ui}/ui/oidc/login")).await?;
        ensure!(page.status() == 502, "{page:?}");
        let page = page.text().await?;
        ensure!(page.contains("Cannot connect to the identity provider: "), "{page}");
        ensure!(page.contains("--oidc-ca-file, the address and the CA"), "{page}");
        let request = reqwest::Client::new().post(format!("{ui}/ui/session")).header("x-crowsnest-client", "test");
        let response = request.json(&json!({"token": token})).send().await?;
        ensure!(response.status() == 200, "{response:?}");
        Ok(())
    })?;
    ensure!(fleet.stop()?.success());
    Ok(())
}
