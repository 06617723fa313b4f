//! A minimal browser for sign-in: follows redirects, and keeps cookies per origin and its history.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use http::{Method, StatusCode, header};
use serde_json::Value;

/// The current page.
#[derive(Debug)]
pub struct Page {
    pub status: StatusCode,
    pub url: String,
    pub text: String,
}

/// Cookies and history of one user.
#[derive(Clone)]
pub struct Browser {
    http: reqwest::Client,
    ui: String,
    cookies: BTreeMap<String, BTreeMap<String, String>>,
    /// All visited addresses.
    pub visited: Vec<String>,
    /// All received `Set-Cookie` headers.
    pub set_cookies: Vec<String>,
}

impl Browser {
    /// `ui` is the base of relative addresses, `ca` the authority for other servers.
    pub fn new(ui: &str, ca: &str) -> Result<Self> {
        let http = reqwest::Client::builder()
            .tls_certs_only([reqwest::Certificate::from_pem(ca.as_bytes())?])
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()?;
        Ok(Self { http, ui: ui.to_owned(), cookies: BTreeMap::new(), visited: Vec::new(), set_cookies: Vec::new() })
    }

    fn cookie(&self, url: &url::Url) -> String {
        let cookies = self.cookies.get(&url.origin().ascii_serialization());
        let pairs = cookies.into_iter().flatten().map(|(name, value)| format!("{name}={value}"));
        pairs.collect::<Vec<_>>().join("; ")
    }

    /// Stores the cookies of a response.
    fn store_cookies(&mut self, url: &url::Url, response: &reqwest::Response) -> Result<()> {
        for set in response.headers().get_all(header::SET_COOKIE) {
            let set = set.to_str()?;
            self.set_cookies.push(set.to_owned());
            let (pair, attributes) = set.split_once(';').context("the cookie has no attributes")?;
            let (name, value) = pair.split_once('=').context("the cookie has no value")?;
            let cookies = self.cookies.entry(url.origin().ascii_serialization()).or_default();
            match attributes.contains("Max-Age=0") {
                true => cookies.remove(name),
                false => cookies.insert(name.to_owned(), value.to_owned()),
            };
        }
        Ok(())
    }

    /// Opens a page and follows redirects.
    pub async fn open(&mut self, address: &str) -> Result<Page> {
        let mut url = url::Url::parse(&self.ui)?.join(address)?;
        for _ in 0..10 {
            self.visited.push(url.to_string());
            let cookie = self.cookie(&url);
            let response = self.http.get(url.clone()).header(header::COOKIE, cookie).send().await?;
            self.store_cookies(&url, &response)?;
            let status = response.status();
            let Some(location) = response.headers().get(header::LOCATION) else {
                return Ok(Page { status, url: url.to_string(), text: response.text().await? });
            };
            url = url.join(location.to_str()?)?;
        }
        bail!("redirected in a loop: {:?}", self.visited)
    }

    /// Sends a request as a page of the UI does; returns the status and body of the response.
    pub async fn send(&mut self, method: Method, path: &str) -> Result<(u16, Value)> {
        let url = url::Url::parse(&self.ui)?.join(path)?;
        let request = self.http.request(method, url.clone()).header(header::COOKIE, self.cookie(&url));
        let response = request.header("x-crowsnest-client", "test").send().await?;
        self.store_cookies(&url, &response)?;
        let status = response.status().as_u16();
        let text = response.text().await?;
        Ok((status, serde_json::from_str(&text).with_context(|| text.clone())?))
    }

    /// Drops the cookies of the UI.
    pub fn drop_cookies(&mut self) {
        self.cookies.remove(&self.ui);
    }
}
