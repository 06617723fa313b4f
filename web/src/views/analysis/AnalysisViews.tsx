// Views below /paths, /who-can and /assistants.
import { useLocation } from 'wouter'
import { SectionPage } from '../../parts/SectionPage'
import { useTextOf } from '../../text'
import { analysisText } from '../../text/analysis'
import { Assistants } from './Assistants'
import { PathsPage } from './PathsPage'
import { WhoCan } from './WhoCan'

const TABS = [
  ['paths', '/paths'],
  ['whoCan', '/who-can'],
  ['assistants', '/assistants'],
] as const

export function AnalysisViews() {
  const t = useTextOf(analysisText)
  const [path] = useLocation()
  return (
    <SectionPage label={t.views} tabs={TABS.map(([name, href]) => [t.tabs[name], href])}>
      {path === '/who-can' ? <WhoCan /> : path === '/assistants' ? <Assistants /> : <PathsPage />}
    </SectionPage>
  )
}
