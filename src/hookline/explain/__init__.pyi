from .page import explain_fragment as explain_fragment
from .page import explain_html as explain_html
from .view import RunView as RunView
from .view import explain as explain
