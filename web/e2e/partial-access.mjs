// Users with permissions in one namespace only, and a member that does not respond. Called by propagation.mjs.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { assertAccessible, api, removeExpected, removeOutages, signInByLink, openPageInOwnContext } from './browser.mjs'

const WEB = 'apiVersion=apps%2Fv1&kind=Deployment&namespace=default&name=web'

/** A user with permissions in one namespace sees its objects, and an explanation for everything else. */
export async function checkOneNamespace(page, origin, pictures, problems) {
  const name = 'one-namespace'
  const rbac = '/apis/rbac.authorization.k8s.io/v1/namespaces/default'
  const accounts = '/api/v1/namespaces/default/serviceaccounts'
  const rules = [{ apiGroups: ['*'], resources: ['*'], verbs: ['get', 'list', 'watch'] }]
  await api(page, 'POST', accounts, { metadata: { name } }, [201, 409])
  await api(page, 'POST', `${rbac}/roles`, { metadata: { name }, rules }, [201, 409])
  const subjects = [{ kind: 'ServiceAccount', name, namespace: 'default' }]
  await api(page, 'POST', `${rbac}/rolebindings`, { metadata: { name }, roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'Role', name }, subjects }, [201, 409])
  // Service accounts see only members whose `clusters/proxy` they may use.
  const clusterRbac = '/apis/rbac.authorization.k8s.io/v1'
  const proxy = { apiGroups: ['cluster.karmada.io'], resources: ['clusters/proxy'], resourceNames: ['member1'], verbs: ['get'] }
  const proxyRole = `${name}-reach`
  await api(page, 'POST', `${clusterRbac}/clusterroles`, { metadata: { name: proxyRole }, rules: [proxy] }, [201, 409])
  await api(page, 'POST', `${clusterRbac}/clusterrolebindings`, { metadata: { name: proxyRole }, roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: proxyRole }, subjects }, [201, 409])
  const { status } = await api(page, 'POST', `${accounts}/${name}/token`, { apiVersion: 'authentication.k8s.io/v1', kind: 'TokenRequest', spec: {} })
  const userPage = await openPageInOwnContext(page, origin, problems)
  await signInByLink(userPage, `${origin}/steer#token=${status.token}`)
  await userPage.getByRole('table', { name: 'Policies' }).locator('tr[data-policy="default/web"]').first().waitFor()
  // Shared saved searches are visible and not editable; private searches of other users are not visible.
  const searches = '/apis/search.crowsnest.io/v1alpha1/savedsearches'
  const savedSearches = []
  for (const [title, shared] of [['For everybody', true], ['For me', false]]) {
    savedSearches.push(await api(page, 'POST', searches, { spec: { title, query: 'kind:deployment', shared } }))
  }
  await userPage.goto(`${origin}/saved`)
  const row = userPage.getByRole('row', { name: /^For everybody/ })
  assert.match(await row.getByRole('button', { name: 'Delete', disabled: true }).getAttribute('title'), /^Only its owner .* can change it/)
  assert.equal(await userPage.getByRole('row', { name: /^For me/ }).count(), 0)
  for (const { metadata } of savedSearches) await api(page, 'DELETE', `${searches}/${metadata.name}`)
  await userPage.goto(`${origin}/why?${WEB}`)
  await userPage.getByRole('table', { name: 'Targets' }).locator('tr[data-target=member1]').waitFor()
  await userPage.goto(`${origin}/fleet`)
  await userPage.getByRole('table', { name: 'Clusters' }).locator('tr[data-cluster=member1]').waitFor()
  await userPage.getByText('Capacity is not shown: you may not list clusters.').waitFor()
  await userPage.goto(`${origin}/cluster/member1`)
  await userPage.getByText('Forbidden (403)').waitFor()
  const cordon = userPage.getByRole('button', { name: 'Cordon' })
  assert.match(await cordon.getAttribute('title'), /You may not patch the cluster member1/)
  await assertAccessible(userPage)
  await userPage.goto(`${origin}/plan?apiVersion=policy.karmada.io%2Fv1alpha1&kind=PropagationPolicy&namespace=default&name=web`)
  // Read-only users can preview a change; Apply is disabled with a reason.
  await userPage.getByRole('alert').getByText(/cannot update|forbidden/).waitFor()
  await userPage.getByRole('button', { name: 'What if…' }).click()
  await userPage.getByText('No template is affected.').waitFor()
  // Searches find the readable objects; forbidden actions are disabled with a reason.
  await userPage.goto(`${origin}/search?q=kind%3Adeployment+name%3A%3Dweb`)
  await userPage.getByText(/^1 objects? in/).waitFor()
  await userPage.locator('.row:not(.head) [data-column=name] a').first().click()
  await userPage.getByRole('link', { name: 'YAML' }).click()
  const edit = userPage.getByRole('button', { name: 'Edit', disabled: true })
  assert.equal(await edit.getAttribute('title'), 'You may not update deployments in default of @control-plane.')
  await userPage.getByRole('button', { name: 'Delete', disabled: true }).waitFor()
  await assertAccessible(userPage)
  await userPage.goto(`${origin}/search?q=kind%3Asecret+ns%3Akube-system`)
  await userPage.getByText(/Results contain only objects that you may read in each cluster/).waitFor()
  await userPage.goto(`${origin}/object?cluster=%40control-plane&apiVersion=v1&resource=configmaps&namespace=kube-system&name=extension-apiserver-authentication`)
  await userPage.getByRole('alert').getByText(/denied the request: .*(403|forbidden|cannot get)/).waitFor()
  await userPage.screenshot({ path: join(pictures, 'propagation-reader.png'), fullPage: true })
  await checkOneMember(page, userPage, origin, name, pictures)
  await userPage.context().close()
  for (const path of [`${rbac}/rolebindings/${name}`, `${rbac}/roles/${name}`, `${accounts}/${name}`, `${clusterRbac}/clusterrolebindings/${proxyRole}`, `${clusterRbac}/clusterroles/${proxyRole}`]) await api(page, 'DELETE', path)
  removeExpected(problems, /403/)
}

/** A user with permissions in one member: searches find the objects that the user may read there, and forbidden actions are disabled. */
async function checkOneMember(page, userPage, origin, name, pictures) {
  const rbac = '/apis/rbac.authorization.k8s.io/v1'
  const roleRef = (kind) => ({ apiGroup: 'rbac.authorization.k8s.io', kind, name })
  const member = `/apis/cluster.karmada.io/v1alpha1/clusters/member1/proxy${rbac}/namespaces/default`
  const readRules = [{ apiGroups: [''], resources: ['pods', 'pods/log', 'events'], verbs: ['get', 'list', 'watch'] }]
  const user = { kind: 'User', apiGroup: 'rbac.authorization.k8s.io', name: `system:serviceaccount:default:${name}` }
  const account = { kind: 'ServiceAccount', name, namespace: 'default' }
  const proxyRules = [{ apiGroups: ['cluster.karmada.io'], resources: ['clusters/proxy'], resourceNames: ['member1'], verbs: ['*'] }]
  const objects = [
    [`${member}/roles`, { metadata: { name }, rules: readRules }],
    [`${member}/rolebindings`, { metadata: { name }, roleRef: roleRef('Role'), subjects: [user] }],
    [`${rbac}/clusterroles`, { metadata: { name }, rules: proxyRules }],
    [`${rbac}/clusterrolebindings`, { metadata: { name }, roleRef: roleRef('ClusterRole'), subjects: [account] }],
  ]
  for (const [path, body] of objects) await api(page, 'POST', path, body, [201, 409])
  const pods = 'kind%3Apod+label%3Aapp%3Dweb'
  for (let total = 0; total !== 2; ) total = (await api(userPage, 'GET', `/apis/search.crowsnest.io/v1alpha1/count?q=${pods}`)).total
  // The member accepts requests of the user once the fleet has granted impersonation there.
  const podsPath = '/apis/cluster.karmada.io/v1alpha1/clusters/member1/proxy/api/v1/namespaces/default/pods'
  for (let kind = 'Status'; kind === 'Status'; ) kind = (await api(userPage, 'GET', podsPath, undefined, [200, 403])).kind
  await userPage.goto(`${origin}/search?q=${pods}`)
  await userPage.getByText(/^2 objects in/).waitFor()
  await userPage.locator('.row:not(.head) [data-column=name] a').first().click()
  await userPage.getByRole('heading', { name: /^Pod web-/ }).waitFor()
  await userPage.getByRole('link', { name: 'Terminal: You may not create pods/exec in default of member1.' }).waitFor()
  const remove = userPage.getByRole('button', { name: 'Delete', disabled: true })
  assert.equal(await remove.getAttribute('title'), 'You may not delete pods in default of member1.')
  await userPage.getByRole('link', { name: 'Logs', exact: true }).click()
  await userPage.locator('.log .line').first().waitFor()
  await assertAccessible(userPage)
  await userPage.screenshot({ path: join(pictures, 'reader-logs.png'), fullPage: true })
  for (const [path] of objects.reverse()) await api(page, 'DELETE', `${path}/${name}`)
}

/** If a member accepts requests and never responds, pages that need it report this, and all other pages work. */
export async function checkUnresponsiveMember(page, origin, problems, saveScreenshot) {
  const sim = (...fault) => execFileSync(process.env.CROWSNEST_BINARY, ['sim', 'member3', ...fault])
  sim('silence')
  try {
    await page.goto(`${origin}/drift?${WEB}&cluster=member3`)
    await page.getByRole('alert').getByText(/member3 did not respond|member3 does not respond/).waitFor()
    await saveScreenshot('unresponsive')
    await page.getByRole('navigation', { name: 'Cluster', exact: true }).getByRole('link', { name: 'member2' }).click()
    await page.getByText('In sync').waitFor()
    // The cached revisions of an object in the member are shown although the member does not respond.
    const objectPath = (cluster, tab) => `/object?cluster=${cluster}&apiVersion=apps%2Fv1&resource=deployments&namespace=default&name=web&tab=${tab}`
    await page.goto(origin + objectPath('member3', 'overview'))
    await page.getByRole('alert').getByText(/member3 did not respond|member3 does not respond/).waitFor()
    await page.getByRole('link', { name: 'Show its cached history.' }).click()
    await page.getByRole('table', { name: 'Versions' }).waitFor()
    for (const [path, selector] of [
      ['/search?q=kind%3Adeployment+cluster%3Amember3', '.hits .row:not(.head) a'],
      [objectPath('member3', 'related'), '.graph .place'],
      [objectPath('member1', 'yaml'), '.editor .cm-line'],
      [`${objectPath('%40control-plane', 'logs')}&tail=5`, '.log .line'],
      ['/fleet', 'tr[data-cluster=member1]'],
      ['/cluster/member3', 'tr[data-condition=Ready]'],
      [`/topology?${WEB}`, '[data-kind=Pod]'],
      [`/why?${WEB}`, 'tr[data-target=member3]'],
      ['/fleet/events', 'table[aria-label=Events] tbody tr'],
    ]) {
      const startedAt = Date.now()
      await page.goto(origin + path)
      await page.locator(selector).first().waitFor()
      assert.ok(Date.now() - startedAt < 8_000, `${path} took ${Date.now() - startedAt} ms while a member does not respond`)
    }
  } finally {
    sim('start')
  }
  removeOutages(problems, ['member3'])
}
