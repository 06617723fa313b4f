import { StrictMode } from 'react'
import { createRoot } from 'react-dom/client'
import { startConnection } from './api/useConnection'
import { recordMissingStyleSheets } from './parts/moduleLoader'
import { startPrefs } from './prefs'
import { preloadView, Views } from './router'
import './tokens.css'
import './style.css'
import './shell.css'
import { loadText } from './text'
import { Shell } from './views/Shell'
import { SessionGate } from './views/SignIn'

const root = document.getElementById('root')
if (!root) throw new Error('the page has no #root')
startPrefs()
startConnection()
recordMissingStyleSheets(window)
preloadView(window.location.pathname)
await loadText()
createRoot(root).render(
  <StrictMode>
    <SessionGate>
      <Shell>
        <Views />
      </Shell>
    </SessionGate>
  </StrictMode>,
)
