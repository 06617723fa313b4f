import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.Tokenizer;
import org.apache.lucene.analysis.pattern.PatternCaptureGroupTokenFilter;
import org.apache.lucene.analysis.util.CharTokenizer;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.env.Environment;
import org.elasticsearch.index.IndexSettings;
import org.elasticsearch.index.analysis.TokenFilterFactory;
import org.elasticsearch.index.analysis.TokenizerFactory;
import org.elasticsearch.indices.analysis.AnalysisModule.AnalysisProvider;
import org.elasticsearch.plugins.AnalysisPlugin;
import org.elasticsearch.plugins.Plugin;

/**
 * The two analysis components that the index template uses, which Elasticsearch ships in a module that is in no Maven repository:
 * tokenizer {@code char_group} for single characters and token filter {@code pattern_capture}.
 */
public final class Analysis extends Plugin implements AnalysisPlugin {
    @Override
    public Map<String, AnalysisProvider<TokenizerFactory>> getTokenizers() {
        return Map.of("char_group", Analysis::charGroup);
    }

    @Override
    public Map<String, AnalysisProvider<TokenFilterFactory>> getTokenFilters() {
        return Map.of("pattern_capture", PatternCapture::new);
    }

    private static TokenizerFactory charGroup(IndexSettings index, Environment environment, String name, Settings settings) {
        List<String> characters = settings.getAsList("tokenize_on_chars");
        String separators = characters.stream().map(c -> c.equals("\\n") ? "\n" : c).collect(Collectors.joining());
        int longest = settings.getAsInt("max_token_length", CharTokenizer.DEFAULT_MAX_WORD_LEN);
        return TokenizerFactory.newFactory(name, () -> tokenizer(separators, longest));
    }

    private static Tokenizer tokenizer(String separators, int longest) {
        return new CharTokenizer(CharTokenizer.DEFAULT_TOKEN_ATTRIBUTE_FACTORY, longest) {
            @Override
            protected boolean isTokenChar(int c) {
                return separators.indexOf(c) < 0;
            }
        };
    }

    /** Implements the interface: the constructors of the abstract class differ between versions of Elasticsearch. */
    private static final class PatternCapture implements TokenFilterFactory {
        private final String name;
        private final Pattern[] patterns;
        private final boolean original;

        PatternCapture(IndexSettings index, Environment environment, String name, Settings settings) {
            this.name = name;
            patterns = settings.getAsList("patterns").stream().map(Pattern::compile).toArray(Pattern[]::new);
            original = settings.getAsBoolean("preserve_original", true);
        }

        @Override
        public String name() {
            return name;
        }

        @Override
        public TokenStream create(TokenStream tokens) {
            return new PatternCaptureGroupTokenFilter(tokens, original, patterns);
        }
    }
}
