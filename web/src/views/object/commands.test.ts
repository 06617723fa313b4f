import { expect, it } from 'vitest'
import type { Tab } from '../../api/address'
import { CONTROL_PLANE } from '../../api/client'
import { commandsFor, shellQuote } from './commands'

const web = { cluster: 'member1', apiVersion: 'apps/v1', resource: 'deployments', namespace: 'shop', name: 'web' }
const commandTexts = (ref: Partial<typeof web>, tab: Tab, view: Record<string, string> = {}, logs?: string) =>
  commandsFor({ ...web, ...ref }, tab, { kind: 'Deployment', uid: 'u1', view, about: 'deployments/shop/web', ...(logs && { logs }) }).map(({ text }) => text)

it.each([
  ['yaml', {}, {}, ['kubectl --context member1 -n shop get deployments.v1.apps/web -o yaml', 'crowsnest get deployments.apps/web -n shop --cluster member1 -o yaml']],
  ['yaml', {}, { edit: 'true' }, ['kubectl --context member1 -n shop edit deployments.v1.apps/web', 'crowsnest get deployments.apps/web -n shop --cluster member1 -o yaml']],
  ['yaml', { cluster: CONTROL_PLANE }, { managed: 'true' }, ['kubectl -n shop get deployments.v1.apps/web -o yaml --show-managed-fields']],
  ['events', {}, {}, ['kubectl --context member1 -n shop get events --field-selector=involvedObject.uid=u1', "crowsnest search 'kind:event about:deployment.apps/shop/web cluster:=member1'"]],
  ['history', {}, { from: '3', to: 'now' }, [
    "kubectl get --raw '/apis/search.crowsnest.io/v1alpha1/history?cluster=member1&apiVersion=apps%2Fv1&resource=deployments&namespace=shop&name=web'",
    "kubectl get --raw '/apis/search.crowsnest.io/v1alpha1/diff?cluster=member1&apiVersion=apps%2Fv1&resource=deployments&namespace=shop&name=web&from=3&to=now'",
  ]],
  ['journal', { cluster: CONTROL_PLANE }, { at: '10:05', within: '1m' }, [
    "kubectl get --raw '/apis/search.crowsnest.io/v1alpha1/journal?about=deployments%2Fshop%2Fweb&at=10%3A05&within=1m'",
    'crowsnest journal deployments.apps/web -n shop --at 10:05 --within 1m',
  ]],
] as [Tab, Partial<typeof web>, Record<string, string>, string[]][])('commands of the tab %s for %j with the parameters %j', (tab, ref, view, expected) => {
  expect(commandTexts(ref, tab, view)).toEqual(expected)
})

it('filters of logs become flags', () => {
  expect(commandTexts({}, 'logs', { container: 'app', include: "can't", since: '1h', follow: 'false' }, 'kind:deployment name:=web select:pod')).toEqual([
    'kubectl --context member1 -n shop logs deployments.v1.apps/web -c app --since 1h',
    "crowsnest logs 'kind:deployment name:=web select:pod' -c '^app$' --since 1h --include 'can'\\''t'",
  ])
})

it('arguments are quoted for a shell', () => {
  expect(['a/b=c', 'a b', "it's", ''].map(shellQuote)).toEqual(['a/b=c', "'a b'", "'it'\\''s'", "''"])
})
